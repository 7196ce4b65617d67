"""`verify`: runs a plan and compares it with the unsharded model, and its collectives and memory with the
prediction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..dtensor import Recorded
from ..errors import UsageError, require
from ..graph import Graph, Ref, autocast_to, call_arguments, inputs_of, with_loss
from ..planning import (
    Compute,
    Move,
    Pipeline,
    Plan,
    collectives_inside,
    joined,
    most_sharded_plan,
    peak_of_values,
    require_plan,
)
from ..progress import Progress, silent
from ..redistribution import Chain
from ..running import (
    MakeOptimizer,
    chosen_optimizer,
    require_planned,
    with_live_graph,
    with_live_stages,
)
from ._compare import Check
from ._draws import UnmatchedDraws
from ._real import train_on_gloo
from ._real_stages import train_stages_on_gloo
from ._reference import Run, in_double, is_random_graph
from ._report import Report
from ._runs import Joined, Runs, checks
from ._stages import first_wrong_call_of_stages, predicted_peaks, train_stages
from ._train import Trained
from ._verdict import Verdict, verdict, verdict_of

BACKENDS = ("simulate", "gloo")


@autocast_to(None)
def verify(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    plan: Plan | Pipeline | None = None,
    loss_fn: Callable[..., Any] | None = None,
    steps: int = 1,
    optimizer: str | MakeOptimizer = "sgd",
    double: bool = False,
    backend: str = "simulate",
    only_plan: bool = False,
    seed: int = 0,
    build: Callable[[], Any] | None = None,
    progress: Progress = silent,
) -> Report:
    """Run a plan and the unsharded model side by side and compare all results.

    `plan` is required: the result of `shardwise.plan` for this model, such arguments and this `loss_fn`.
    Compared are outputs and losses, every gradient, and parameters and buffers after `steps` optimizer steps (none
    for a plan without backward), by a tolerance that follows from the dtypes; `double` runs both in double precision.
    The model is run as written, with the plan's random numbers. If something differs, both run again in double
    precision, which tells rounding error from a wrong result. The plan runs on simulated ranks inside this process,
    or with `backend="gloo"` on a process per rank, to which the model is sent; one that cannot be sent is built there
    by `build`, a function that returns it, alone or first in a tuple. A plan of several
    micro-batches runs each step in so many passes, and so does the model, with the elements of the arguments moved on
    from pass to pass. Unless `only_plan`, the plan that shards as much as possible also runs on simulated ranks: a
    cheap plan of a small model may shard nothing. A pipeline runs all its stages, each micro-batch through all of them.
    """
    require_plan(plan, "verify")
    assert plan is not None
    require(seed, int, "seed", "a whole number")
    require(steps, int, "steps", "a whole number, 0 or more")
    args, kwargs = call_arguments(args, kwargs)
    whole = with_loss(model, loss_fn)
    chosen = chosen_optimizer(optimizer)
    if steps < 0:
        raise UsageError(f"steps is {steps}: give 0 or more")
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}: use one of {', '.join(BACKENDS)}")
    if backend == "gloo" and double:
        raise UsageError("double precision needs simulated ranks: leave out `double`, or the backend")
    if isinstance(plan, Pipeline):
        return _verified_stages(
            *(plan, model, whole, args, kwargs, steps, optimizer, double, backend, only_plan),
            *(seed, build, loss_fn, progress),
        )
    plan = with_live_graph(plan, whole, args, kwargs)
    given = inputs_of(plan.graph, whole, args, kwargs)
    require_planned(plan, given)
    steps = steps if plan.graph.training else 0
    runs = Runs(whole, args, kwargs, given, steps, chosen, seed, progress, plan.micro_batches)
    expected: Run | UnmatchedDraws
    try:
        expected = runs.model(plan.graph, double)
    except UnmatchedDraws as error:
        expected = error
    if backend == "simulate":
        trained = runs.plan(plan, double)
    else:
        progress("running the plan on its ranks")
        trained = train_on_gloo(plan, model, args, kwargs, steps, optimizer, seed, build, loss_fn)
    report = _report(runs, plan, backend, double, expected, trained)
    if only_plan or plan.mesh.ranks == 1:
        return report
    progress("sharding as much as possible")
    sharded = most_sharded_plan(plan.graph, mesh=plan.mesh, cluster=plan.cluster)
    sharded = replace(sharded, micro_batches=plan.micro_batches)
    other = _report(runs, sharded, "simulate", double, expected, runs.plan(sharded, double))
    return replace(report, most_sharded=other)


def _verified_stages(
    pipeline: Pipeline,
    model: Callable[..., Any],
    whole: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    steps: int,
    optimizer: str | MakeOptimizer,
    double: bool,
    backend: str,
    only_plan: bool,
    seed: int,
    build: Callable[[], Any] | None,
    loss_fn: Callable[..., Any] | None,
    progress: Progress,
) -> Report:
    """The same of a pipeline."""
    pipeline, graph = with_live_stages(pipeline, whole, args, kwargs)
    given = inputs_of(graph, whole, args, kwargs)
    chosen = chosen_optimizer(optimizer)
    runs = Runs(whole, args, kwargs, given, steps, chosen, seed, progress, pipeline.micro_batches)
    expected = runs.model(graph, double)

    def simulated(of: Pipeline, wide: bool) -> Trained:
        return train_stages(of, graph, given, steps, chosen, seed, wide, progress)

    if backend == "simulate":
        trained = simulated(pipeline, double)
    else:
        progress("running the pipeline on its ranks")
        trained = train_stages_on_gloo(pipeline, model, args, kwargs, steps, optimizer, seed, build, loss_fn)
    report = _report_on_stages(runs, pipeline, graph, backend, double, expected, trained, simulated)
    if only_plan or pipeline.stages[0].mesh.ranks == 1:
        return report
    progress("sharding as much as possible")
    stages = [
        replace(
            most_sharded_plan(plan.graph, mesh=plan.mesh, cluster=plan.cluster),
            micro_batches=plan.micro_batches,
        )
        for plan in pipeline.stages
    ]
    sharded = replace(pipeline, stages=joined(stages))
    trained = simulated(sharded, double)
    other = _report_on_stages(runs, sharded, graph, "simulate", double, expected, trained, simulated)
    return replace(report, most_sharded=other)


def _report_on_stages(
    runs: Runs,
    pipeline: Pipeline,
    graph: Graph,
    backend: str,
    wide: bool,
    expected: Run,
    trained: Trained,
    simulated: Callable[[Pipeline, bool], Trained],
) -> Report:
    runs.progress("comparing")
    found = Joined.of(graph, trained)
    compared = checks(graph, expected, found, wide)

    def wrong(expected: Run, wide: bool) -> Verdict:
        first = first_wrong_call_of_stages(pipeline, runs.given, runs.seed, wide)
        if first is None:
            return Verdict(
                "wrong", "every call of every stage is right: the stages together differ from the model"
            )
        return Verdict("wrong", f"first wrong call: {first}")

    why = verdict_of(
        *(runs, graph, expected, found, compared),
        again=lambda wide: simulated(pipeline, wide),
        wrong=wrong,
        wide=wide,
        real=backend != "simulate",
    )
    calls = [e for plan in pipeline.stages for e in plan.schedule.entries if isinstance(e, Compute)]
    ran, priced = trained.collectives[-1], [c for plan in pipeline.stages for c in priced_collectives(plan)]
    if backend != "simulate":  # micro-batches and stages take turns
        ran, priced = sorted(ran, key=repr), sorted(priced, key=repr)
    return Report(
        *(pipeline.name, str(pipeline.mesh), backend, runs.steps),
        "the model" + (" in double precision" if wide else ""),
        _random_text(graph),
        tuple(compared),
        sum(any(not row.is_replicated for row in call.choice.rows) for call in calls),
        len(calls),
        tuple(ran),
        tuple(priced),
        None if wide else trained.peak,
        max(predicted_peaks(pipeline)),
        why,
    )


def _random_text(graph: Graph) -> str:
    random = is_random_graph(graph)
    return "compared elementwise: the model used the plan's random numbers" if random else "none"


def _report(
    runs: Runs, plan: Plan, backend: str, wide: bool, expected: Run | UnmatchedDraws, trained: Trained
) -> Report:
    runs.progress("comparing")
    graph, found = plan.graph, Joined.of(plan.graph, trained)
    compared: list[Check] = []
    if isinstance(expected, UnmatchedDraws):
        why = Verdict("not compared", str(expected))
    else:
        compared = checks(graph, expected, found, wide)
        why = verdict(runs, plan, expected, found, compared, wide=wide, real=backend != "simulate")
    priced = priced_collectives(plan, in_double(plan) if wide else graph)
    calls = [entry for entry in plan.schedule.entries if isinstance(entry, Compute)]
    return Report(
        graph.name,
        str(plan.mesh),
        backend,
        runs.steps,
        "the model" + (" in double precision" if wide else ""),
        _random_text(graph),
        tuple(compared),
        sum(any(not row.is_replicated for row in call.choice.rows) for call in calls),
        len(calls),
        tuple(trained.collectives[-1]),
        tuple(priced),
        None if wide else trained.peak,
        predicted_peak(plan),
        why,
    )


def priced_collectives(plan: Plan, graph: Graph | None = None) -> list[Recorded]:
    """The collectives of a step in order, for tensors of the plan's dtypes or of those of `graph`.

    A permute is an exchange among all ranks.
    """
    graph = graph or plan.graph
    gathers = [(Ref(move.name), move.change) for move in plan.once.gathers]
    targets = {entry.name: entry.target for entry in graph.with_role("parameter")}
    reduced = [(graph.gradients[targets[move.name]], move.change) for move in plan.once.reductions]
    before, after = (
        [each for ref, change in once if ref is not None for each in _of_change(plan, graph, ref, change)]
        for once in (gathers, reduced)
    )
    return [*before, *plan.micro_batches * _of_pass(plan, graph), *after]


def _of_pass(plan: Plan, graph: Graph) -> list[Recorded]:
    nodes = {node.name: node for node in graph.nodes}
    priced: list[Recorded] = []
    for entry in plan.schedule.entries:
        if isinstance(entry, Compute):
            node = nodes[entry.node.name]
            inside = collectives_inside(graph.call(node), entry.choice, plan.cluster)
            priced += [Recorded(_kind(kind), size, ranks) for kind, size, ranks in inside]
        elif isinstance(entry, Move):
            own = _of_change(plan, graph, entry.source.ref, entry.change)
            if entry.joined:
                own = [priced.pop().joined(*own)]
            priced += own
    return priced


def _of_change(plan: Plan, graph: Graph, ref: Ref, change: Chain) -> list[Recorded]:
    own, other = (g.tensor(ref).dtype.itemsize for g in (plan.graph, graph))
    found = []
    for step in change.collectives:
        ranks = plan.mesh.ranks if step.kind == "permute" else plan.mesh.shape[step.axes[0]]
        found.append(Recorded(_kind(step.kind), step.size // own * other, ranks))
    return found


def _kind(kind: str) -> str:
    return "all_to_all" if kind == "permute" else kind


def predicted_peak(plan: Plan) -> int:
    """The peak bytes of the values of a step as the plan predicts them, without optimizer state."""
    return peak_of_values(plan)
