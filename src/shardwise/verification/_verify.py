"""`verify`: a plan, run, equals the unsharded model; and it sent what was priced, and took the memory predicted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..dtensor import Recorded
from ..errors import UsageError, require
from ..graph import call_arguments, inputs_of
from ..planning import Compute, Plan, Value, require_plan
from ..progress import Progress, silent
from ..running import (
    MakeOptimizer,
    Pieces,
    Simulation,
    chosen_optimizer,
    plan_pieces,
    require_planned,
    with_live_graph,
)
from ._compare import Check, compare, error_of, floor_of, tolerance
from ._real import train_on_gloo
from ._reference import Run, is_random_graph, run_captured, run_graph, run_model
from ._report import Report
from ._train import Trained, train

BACKENDS = ("simulate", "gloo")


def verify(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    plan: Plan | None = None,
    steps: int = 1,
    optimizer: str | MakeOptimizer = "sgd",
    double: bool = False,
    backend: str = "simulate",
    seed: int = 0,
    build: Callable[[], Any] | None = None,
    progress: Progress = silent,
) -> Report:
    """Run a plan and the unsharded model side by side and compare all that they give.

    `plan` has to be given: what `shardwise.plan` made of this model and such arguments.
    Outputs and losses, every gradient, and parameters and buffers after `steps` optimizer steps (none for a plan
    without backward), by a tolerance that follows from the dtypes; `double` runs both in double precision. The plan
    runs on simulated ranks inside this process, or with `backend="gloo"` on a process for each rank, to which the model
    is sent; one that cannot be sent is made there by `build`, a function that returns it, alone or first in a tuple.
    """
    require_plan(plan, "verify")
    assert plan is not None
    require(seed, int, "seed", "a whole number")
    require(steps, int, "steps", "a whole number, 0 or more")
    args, kwargs = call_arguments(args, kwargs)
    plan = with_live_graph(plan, model, args, kwargs)
    if not plan.graph.training:
        steps = 0
    chosen = chosen_optimizer(optimizer)
    if steps < 0:
        raise UsageError(f"{steps} optimizer steps were asked for: give 0 or more")
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}: use one of {', '.join(BACKENDS)}")
    if backend == "gloo" and double:
        raise UsageError("double precision is for simulated ranks: leave out `double`, or the backend")
    given = inputs_of(plan.graph, model, args, kwargs)
    require_planned(plan, given)
    progress("running the model")
    if double or is_random_graph(plan.graph):
        expected = run_captured(plan, given, steps, chosen, seed, double)
        reference = "the captured graph" + (" in double precision" if double else "")
    else:
        expected = run_model(plan.graph, model, args, kwargs, steps, chosen)
        reference = "the model"
    if backend == "simulate":
        trained = train(plan, given, steps, chosen, seed, double, progress)
    else:
        progress("running the plan on its ranks")
        trained = train_on_gloo(plan, model, args, kwargs, steps, optimizer, seed, build)
    progress("comparing")
    checks = _checks(plan, expected, trained, double)
    ran = trained.collectives[-1]
    priced = priced_collectives(plan, double)
    return Report(
        plan.graph.name,
        str(plan.mesh),
        backend,
        steps,
        reference,
        "none" if not is_random_graph(plan.graph) else "compared with the same streams",
        tuple(checks),
        tuple(ran),
        tuple(priced),
        None if double else trained.peak,
        predicted_peak(plan),
        None if all(check.ok for check in checks) else first_wrong_node(plan, given, seed, double),
    )


def priced_collectives(plan: Plan, wide: bool = False) -> list[Recorded]:
    """The collectives of a plan in the order of its schedule. A permute is an exchange among all ranks."""
    priced = []
    for move in plan.schedule.moves:
        dtype = plan.graph.tensor(move.source.ref).dtype
        times = 8 // dtype.itemsize if wide and dtype.is_floating_point else 1
        for step in move.change.collectives:
            if step.kind == "permute":
                priced.append(Recorded("all_to_all", step.size * times, plan.mesh.ranks))
            else:
                priced.append(Recorded(step.kind, step.size * times, plan.mesh.shape[step.axes[0]]))
    return priced


def predicted_peak(plan: Plan) -> int:
    """The most bytes that the values of a step take at one time by the plan's own account: no optimizer state."""
    return replace(plan, optimizer="none").cost.peak_of_values


def first_wrong_node(plan: Plan, given: Mapping[str, Any], seed: int = 0, wide: bool = False) -> str | None:
    """The first node, in order, whose result differs from the whole one, with the error and the choice."""
    expected = run_graph(plan, given, seed, wide)
    wrong: list[str] = []
    entries = {entry.node.name: entry for entry in plan.schedule.entries if isinstance(entry, Compute)}
    least = coarsest(plan, wide)

    def watch(value: Value, pieces: Pieces) -> None:
        whole = expected[value.ref]
        if wrong or not isinstance(whole, Tensor):
            return
        inputs = [expected[ref] for ref in entries[value.ref.name].node.inputs]
        error = max(error_of(whole, pieces.whole(), floor_of(inputs)), pieces.disagreement())
        allowed = tolerance(least) if whole.is_floating_point() and least else tolerance(whole.dtype)
        if error > allowed:
            entry = entries[value.ref.name]
            wrong.append(f"{entry.node} by {entry.choice}: error {error:.2e}")

    Simulation(plan, wide).run(plan_pieces(plan, given, wide), seed, watch)
    return wrong[0] if wrong else None


def coarsest(plan: Plan, wide: bool = False) -> torch.dtype | None:
    """The float dtype of largest rounding that the graph computes in."""
    if wide:
        return torch.float64
    dtypes = {info.dtype for node in plan.graph.nodes for info in node.outputs if info is not None}
    return max((dtype for dtype in dtypes if dtype.is_floating_point), key=tolerance, default=None)


def _checks(plan: Plan, expected: Run, trained: Trained, wide: bool) -> list[Check]:
    least = coarsest(plan, wide)
    parameters = {entry.target for entry in plan.graph.with_role("parameter")}
    losses = [
        {f"step {n + 1}": torch.tensor(loss, dtype=torch.float64) for n, loss in enumerate(run.losses)}
        for run in (expected, trained)
    ]
    groups: list[tuple[str, Mapping[str, Any], Mapping[str, Pieces | None]]] = [
        ("output", expected.outputs, trained.outputs),
        ("gradient", expected.gradients, trained.gradients),
        ("parameter", {n: t for n, t in expected.state.items() if n in parameters}, trained.state),
        ("buffer", {n: t for n, t in expected.state.items() if n not in parameters}, trained.state),
    ]
    checks = compare("loss", losses[0], losses[1], {}, least) if plan.graph.training else []
    constants = {output.target: output.constant for output in plan.graph.outputs}
    for kind, whole, pieces in groups:
        whole = {name: value for name, value in whole.items() if name in pieces}
        joined = {name: constants.get(name) if p is None else p.whole() for name, p in pieces.items()}
        apart = {name: p.disagreement() for name, p in pieces.items() if p is not None}
        checks += compare(kind, whole, joined, apart, least)
    return checks
