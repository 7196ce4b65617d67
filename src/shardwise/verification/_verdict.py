"""Why a plan and the model differ: by rounding error, or because a call is wrong, and then which.

Both are run again in double precision. Rounding error shrinks there by eight digits; a real error does not.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ..errors import first_line
from ..graph import Graph
from ..planning import Compute, Plan, Value
from ..running import Pieces, Simulation, plan_pieces
from ._compare import Check, error_of, floor_of, tolerance
from ._reference import Run, run_graph
from ._runs import Joined, Runs, checks, coarsest
from ._train import Trained

# A difference that shrinks by this factor in double precision was rounding error, however much the model amplified it.
_SHRINKS = 1e-5


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison, and the reason."""

    kind: Literal["verified", "rounding", "wrong", "not compared"] = "verified"
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.kind in ("verified", "rounding")


def verdict(
    runs: Runs, plan: Plan, expected: Run, found: Joined, compared: Sequence[Check], *, wide: bool, real: bool
) -> Verdict:
    """The verdict on a run of a plan that was compared with the model, `wide` in double precision already."""
    return verdict_of(
        *(runs, plan.graph, expected, found, compared),
        again=lambda wide: runs.plan(plan, wide),
        wrong=lambda expected, wide: _wrong(runs, plan, expected, wide=wide),
        wide=wide,
        real=real,
    )


def verdict_of(
    runs: Runs,
    graph: Graph,
    expected: Run,
    found: Joined,
    compared: Sequence[Check],
    *,
    again: Callable[[bool], Trained],
    wrong: Callable[[Run, bool], Verdict],
    wide: bool,
    real: bool,
) -> Verdict:
    """The same of whatever runs the graph `again` on simulated ranks; `wrong` says where it is."""
    failed = [check for check in compared if not check.ok]
    if not failed:
        return Verdict()
    if wide:
        return wrong(expected, True)
    if real and all(check.ok for check in checks(graph, expected, Joined.of(graph, again(False)))):
        return Verdict("wrong", "simulated ranks agree with the model, real ranks do not")
    runs.progress("running again in double precision")
    try:
        finer, finer_found = runs.model(graph, wide=True), Joined.of(graph, again(True))
    except Exception as error:  # any exception of an operator without double precision
        first = wrong(expected, False)
        return Verdict("wrong", f"{first.reason}; it cannot be run in double precision: {first_line(error)}")
    before = {_key(check): check.difference for check in compared}
    exact = {_key(check): check for check in checks(graph, finer, finer_found, wide=True)}
    if any(not check.ok and not _shrank(before[key], check.difference) for key, check in exact.items()):
        return wrong(finer, True)
    worst = max(failed, key=lambda check: check.error / (check.tolerance or 1.0))
    away = {_key(check): check.error for check in checks(graph, finer, Joined(expected))}
    ours = {_key(check): check.error for check in checks(graph, finer, found)}
    key = _key(worst)
    return Verdict(
        "rounding",
        f"{worst.kind} {worst.name} differs by {worst.error:.1e}, in double precision by {exact[key].error:.1e}; "
        f"compared with double precision, the model is off by {away[key]:.1e}, the plan by {ours[key]:.1e}",
    )


def _shrank(before: float, after: float) -> bool:
    """Differences themselves: what is nothing but rounding, a sum that cancels, shrinks as its difference does."""
    return math.isfinite(after) and after <= _SHRINKS * before


def _wrong(runs: Runs, plan: Plan, expected: Run, *, wide: bool) -> Verdict:
    """The verdict that a plan is wrong, with its first wrong call; or that its graph is."""
    if (first := first_wrong_call(plan, runs.given, runs.seed, wide)) is not None:
        return Verdict("wrong", f"first wrong call: {first}")
    values = run_graph(plan, runs.given, runs.seed, wide)
    whole = Run()
    for output in plan.graph.outputs:
        value = output.constant if output.value is None else values[output.value]
        if output.role == "gradient" and plan.micro_batches == 1:
            whole.gradients[output.target] = value
        elif output.role == "user_output" and runs.steps <= 1 and plan.micro_batches == 1:
            whole.outputs[output.target] = value
    for check in checks(plan.graph, expected, Joined(whole), wide):
        if not check.ok and check.kind != "loss":
            return Verdict(
                "wrong",
                f"the captured graph differs from the model itself: {check.kind} {check.name} by {check.error:.1e}",
            )
    return Verdict("wrong", "every call of the first step is right: the state kept between steps differs")


def first_wrong_call(plan: Plan, given: Mapping[str, Any], seed: int = 0, wide: bool = False) -> str | None:
    """The first call, in order, whose result differs from the unsharded one, with the error and the choice."""
    expected = run_graph(plan, given, seed, wide)
    found: list[str] = []
    entries = {entry.node.name: entry for entry in plan.schedule.entries if isinstance(entry, Compute)}
    least = coarsest(plan.graph, wide)

    def watch(value: Value, pieces: Pieces) -> None:
        whole = expected[value.ref]
        node = entries[value.ref.name].node
        if found or not isinstance(whole, Tensor) or node.facts.uninitialised:
            return
        inputs = [expected[ref] for ref in node.inputs]
        error = max(error_of(whole, pieces.whole(), floor_of(inputs)), pieces.disagreement())
        allowed = tolerance(least) if whole.is_floating_point() and least else tolerance(whole.dtype)
        if error > allowed:
            found.append(f"{node} by {entries[node.name].choice}: error {error:.2e}")

    Simulation(plan, wide).run(plan_pieces(plan, given, wide), seed, watch)
    return found[0] if found else None


def _key(check: Check) -> tuple[str, str]:
    return check.kind, check.name
