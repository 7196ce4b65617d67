"""Recompute, micro-batches and sharded states together: the example models trained by plans under a limit that binds.

    python benchmarks/memory_choices.py [--models llama,gpt2] [--backends simulate,gloo] [--json FILE]

Each of the models of `examples/models.py` is planned on four ranks with `recompute="auto"`, four micro-batches and
`zero=True`, on slow devices, on which sharding pays even for models as small as these. The limit is the smallest of
some shares of what the fastest plan holds for which a plan was found. The plan trains for three steps of AdamW, on
simulated ranks and on four processes connected by gloo; gradients and parameters are compared with those of the model,
the collectives with those priced, and the peak of simulated ranks with the predicted one.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from record import Record, takes_json
from torch.utils import _pytree as pytree

import shardwise as sw
from shardwise.errors import UsageError
from shardwise.graph import Graph, capture
from shardwise.modules import module_of
from shardwise.planning import plan_graph

MODELS = Path(__file__).parents[1] / "examples" / "models.py"
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
COLUMNS = {
    "model": "",
    "limit": "{:.0%}",
    "again": "{:d}",
    "gathered once": "{:d}",
    "reduced once": "{:d}",
    "peak": "{:,d} B",
    "predicted": "{:,d} B",
    "tensors": "{:d}",
    "simulated": "",
    "gloo": "",
    "planning": "{:.0f} s",
}


def slow_devices() -> sw.Cluster:
    laptop = sw.Cluster.preset("laptop")
    flops = dict.fromkeys(laptop.device.flops, 1e8)
    return replace(laptop, name="slow", device=replace(laptop.device, flops=flops, memory_bandwidth=1e8))


def repeated(given: Any, times: int) -> Any:
    """Arguments with so many times the samples: activations, of which some may be computed again, then count."""

    def repeat(leaf: Any) -> Any:
        return torch.cat([leaf] * times) if isinstance(leaf, torch.Tensor) and leaf.ndim else leaf

    return pytree.tree_map(repeat, given)


def limited(graph: Graph, mesh: str) -> tuple[float, sw.Plan]:
    """The plan under the smallest share of the fastest plan's peak for which one is found."""
    options = {
        "cluster": slow_devices(),
        "micro_batches": 4,
        "zero": True,
        "compare": False,
        "confirm": False,
    }
    free = plan_graph(graph, mesh=mesh, **options)
    for share in SHARES:
        try:
            memory = int(share * free.cost.peak)
            return share, plan_graph(graph, mesh=mesh, memory=memory, time_limit=20.0, **options)
        except UsageError:  # there is none, or none was found in time
            continue
    return 1.0, free


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    zoo = module_of(MODELS).ZOO
    parser.add_argument("--models", default=",".join(zoo))
    parser.add_argument("--mesh", default="dp=4")
    parser.add_argument("--batch", type=int, default=4, help="how many times the samples of the example")
    parser.add_argument("--backends", default="simulate,gloo")
    takes_json(parser)
    options = parser.parse_args()
    record = Record(__doc__, options.json)
    table = record.sheet(f"Three steps of four micro-batches on {options.mesh}", COLUMNS, 14)
    wrong = 0
    for name in options.models.split(","):
        torch.manual_seed(0)
        model, *given = zoo[name]()
        args, kwargs = repeated(given, options.batch)
        begun = time.process_time()
        share, plan = limited(capture(model, args, kwargs, recompute="auto"), options.mesh)
        took = time.process_time() - begun
        reports = {
            backend: sw.verify(
                *(model, args, kwargs),
                plan=plan,
                steps=3,
                optimizer="adamw",
                backend=backend,
                only_plan=True,
                build=zoo[name],
            )
            for backend in options.backends.split(",")
        }
        said = {backend: "equal" if report.ok else "differs" for backend, report in reports.items()}
        first = next(iter(reports.values()))
        table.add(
            *(name, share, len(plan.graph.again), len(plan.once.gathers), len(plan.once.reductions)),
            *(first.peak, first.predicted_peak, len(first.checks)),
            *(said.get("simulate"), said.get("gloo"), took),
        )
        for report in reports.values():
            if not report.ok:
                wrong += 1
                print(report)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
