"""Plans from three annotations: the layouts that propagation finds, what they cost, and whether they verify.

    python benchmarks/annotations.py [NAME...] [--mesh dp=2,tp=2] [--cluster h100]

For every model of `examples/annotated.py`: its annotations, how many linear layers of its blocks have the layout of
Megatron-LM, at how many calls the plan departs from what was propagated because tensors conflict there, CPU seconds
of propagation and of planning after capture (confirmation by experiment included), what a step costs beside the
cheapest of all plans, and whether the plan gives the results of the unsharded model on simulated ranks. Then the same,
without running it, for Llama 3 8B with all of its layers.
"""

import argparse
import resource
import sys
from pathlib import Path

import torch
from record import Record, Sheet, takes_json

import shardwise as sw
from shardwise.graph import Graph, capture
from shardwise.planning import plan_graph

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import models
from annotated import ANNOTATED, Annotated


def cpu_seconds() -> float:
    """Of this process and of those that ran experiments for it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def planned(graph: Graph, annotated: Annotated, options: dict, compare: bool) -> tuple[sw.Plan, float, float]:
    """The plan of a graph, and the CPU seconds of propagation and of planning."""
    begun = cpu_seconds()
    sw.propagate(graph, mesh=options["mesh"], shardings=annotated.shardings)
    propagated = cpu_seconds()
    plan = plan_graph(graph, shardings=annotated.shardings, compare=False, **options)
    ended = cpu_seconds()
    if compare:
        plan = plan_graph(graph, shardings=annotated.shardings, confirm=False, **options)
    return plan, propagated - begun, ended - propagated


def layouts(plan: sw.Plan, annotated: Annotated) -> str:
    layers, wrong = annotated.linear_layers(plan), annotated.wrong(plan)
    return f"{layers - len(wrong)} of {layers}" if layers else ""


def small(names: list[str], options: dict, table: Sheet) -> bool:
    right = True
    for name in names:
        annotated = ANNOTATED[name]
        torch.manual_seed(0)
        model, args, kwargs = annotated.build()
        graph = capture(model, args, kwargs)
        plan, propagation, planning = planned(graph, annotated, options, compare=True)
        ok = sw.verify(model, args, kwargs, plan=plan, only_plan=True).ok
        right = right and ok and not annotated.wrong(plan)
        departs = len(plan.proposal.departures(plan))
        free = plan.baselines["without shardings"]
        cost = 1e6 * plan.cost.seconds, 1e6 * free.seconds
        given, found = len(annotated.shardings), layouts(plan, annotated)
        row = given, found, len(graph.nodes), departs, propagation, planning, *cost, "yes" if ok else "no"
        table.add(name, *row)
    return right


def large(options: dict, table: Sheet) -> None:
    annotated = ANNOTATED["llama"]
    begun = cpu_seconds()
    graph = capture(*models.llama_8b())
    captured = cpu_seconds() - begun
    plan, propagation, planning = planned(graph, annotated, options, compare=False)
    found, departs = layouts(plan, annotated), len(plan.proposal.departures(plan))
    step = 1e3 * plan.cost.seconds, plan.cost.peak / 1e9
    table.add("Llama 3 8B", 32, len(graph.nodes), found, departs, captured, propagation, planning, *step)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all, and Llama 3 8B, by default")
    parser.add_argument("--mesh", default="dp=2,tp=2")
    parser.add_argument("--cluster", default="h100")
    takes_json(parser)
    given = parser.parse_args()
    options = {"mesh": given.mesh, "cluster": given.cluster}
    record = Record(__doc__, given.json)
    columns = {"model": "", "annotations": "{:d}", "as Megatron": "", "calls": "{:,}", "depart": "{:d}"}
    columns |= {"propagation": "{:.2f} s", "planning": "{:.1f} s", "step": "{:.0f} us"}
    columns |= {"without shardings": "{:.0f} us", "verifies": ""}
    title = f"Small models on {given.mesh} of {given.cluster}"
    right = small(given.names or list(ANNOTATED), options, record.sheet(title, columns))
    if not given.names:
        columns = {"model": "", "layers": "{:d}", "calls": "{:,}", "as Megatron": "", "depart": "{:d}"}
        columns |= {"capture": "{:.1f} s", "propagation": "{:.1f} s", "planning": "{:.1f} s"}
        columns |= {"step": "{:.0f} ms", "memory": "{:.0f} GB"}
        large(options, record.sheet(f"At real size, on {given.mesh} of {given.cluster}", columns))
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
