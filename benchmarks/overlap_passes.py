"""Schedules of overlapped plans, and those that torch's passes make of the same programs, by the same timeline.

    python benchmarks/overlap_passes.py [--layers 4] [--devices 8]

The program of a plan without overlap, whose collectives all are waited for at once, is given to torch's
`schedule_overlap_bucketing` with the times that the plan was priced with. What it makes of it is run through in time as
plans are: calls one after another and slower beside collectives, one collective at a time on each link.

With two process groups the pass of torch 2.13 calls itself for ever: FSDP along one axis has one.
"""

import argparse
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from record import Record, takes_json
from torch import fx
from torch._ops import OpOverload
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwise.calls import facts
from shardwise.graph import capture
from shardwise.mesh import Cluster, Mesh
from shardwise.planning import Compute, Plan, Planner
from shardwise.planning._pins import Pins
from shardwise.planning._prices import SLOWDOWN
from shardwise.running import emit

EXAMPLES = Path(__file__).parents[1] / "examples"
WAIT = torch.ops._c10d_functional.wait_tensor.default


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--devices", type=int, default=8)
    takes_json(parser)
    options = parser.parse_args()
    sys.path.insert(0, str(EXAMPLES))
    import models

    record = Record(__doc__, options.json)
    mesh, cluster = Mesh.parse(f"fsdp={options.devices}"), Cluster.of("h100")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=mesh.ranks)
    model, args, kwargs = models.llama_8b(options.layers, batch=mesh.shape[0])
    planner = Planner(capture(model, args, kwargs), mesh, cluster)
    plan = planner.baselines(Pins(mesh))["FSDP"]
    assert plan is not None
    columns = {"schedule": "", "step": "{:.1f} ms", "gathers of parameters hidden": "{:.0%}"}
    columns |= {"reductions of gradients hidden": "{:.0%}", "collectives": "{:,}"}
    sheet = record.sheet(f"FSDP of {options.layers} layers of Llama 3 8B on {mesh.ranks} H100", columns)
    for schedule, (program, priced) in programs(plan).items():
        ran = Ran.of(program, priced)
        hidden = (ran.hidden("all_gather"), ran.hidden("reduce_scatter"))
        sheet.add(schedule, ran.seconds * 1e3, *hidden, ran.collectives)


def programs(plan: Plan) -> dict[str, tuple[list[fx.GraphModule], Plan]]:
    """Forward and backward of the first rank: as they are, as torch's passes change them, and as the plan is."""
    overlapped = plan.overlapped()
    return {
        "waits at once": (parts(plan), plan),
        "torch's pass": ([by_torch(part, plan, bucketing=False) for part in parts(plan)], plan),
        "torch's pass, buckets": ([by_torch(part, plan, bucketing=True) for part in parts(plan)], plan),
        "the plan's": (parts(overlapped), overlapped),
    }


@cache
def device_mesh(mesh: Mesh) -> DeviceMesh:
    return mesh.to_device_mesh("cpu")


def parts(plan: Plan) -> list[fx.GraphModule]:
    program = emit(plan, 0, device_mesh(plan.mesh))
    return [program.forward, *program.backward]


def by_torch(part: fx.GraphModule, plan: Plan, *, bucketing: bool) -> fx.GraphModule:
    from torch._inductor.fx_passes import overlap_scheduling

    prices = Prices(plan)

    def milliseconds(node: fx.Node, size: int | None = None) -> float:
        return prices.of(node, size) * 1e3

    # The roofline that the pass begins with asks for a GPU.
    with patch.object(overlap_scheduling, "estimate_roofline_runtime_ms", milliseconds):
        return overlap_scheduling.schedule_overlap_bucketing(
            part,
            collective_bucketing=bucketing,
            pre_bucketing_fsdp_collectives=bucketing,
            custom_runtime_estimation=milliseconds,
            max_memory_increase_gb=60.0,
            max_memory_increase_ratio=None,
        )


class Prices:
    """What nodes of a plan's program take, in seconds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.link, self.ranks = plan.cluster.link(plan.mesh, 0), plan.mesh.ranks
        self.entries = dict(zip(map(id, plan.schedule.entries), plan.cost.entries, strict=True))

    def of(self, node: fx.Node, size: int | None = None) -> float:
        if (kind := kind_of(node)) is not None:
            given, made = tensors(node.args[0]), tensors(node)
            total = size or max(sum(t.nbytes for t in given), sum(t.nbytes for t in made))
            itemsize = given[0].dtype.itemsize
            return self.link.time(kind, total, self.ranks, itemsize=itemsize)  # type: ignore[arg-type]
        entry = node.meta.get("shardwise")
        if not isinstance(entry, Compute) or node.op != "call_function":
            return 0.0
        seconds = self.entries.get(id(entry), 0.0)
        same = str(node.target) == entry.node.op or "attention" in str(node.target)
        return seconds if same else 0.0


def kind_of(node: fx.Node) -> str | None:
    return facts(node.target).collective if isinstance(node.target, OpOverload) else None


def tensors(value: object) -> list[torch.Tensor]:
    values = value if isinstance(value, list | tuple) else [value]
    found = [each.meta["val"] for each in values if isinstance(each, fx.Node)]
    return [tensor for each in found for tensor in (each if isinstance(each, list | tuple) else [each])]


@dataclass
class Ran:
    """Programs run through in time: calls are one stream, and collectives another."""

    seconds: float
    busy: defaultdict[str, float]
    waited: defaultdict[str, float]
    collectives: int

    @classmethod
    def of(cls, program: list[fx.GraphModule], plan: Plan) -> "Ran":
        prices = Prices(plan)
        ran = cls(0.0, defaultdict(float), defaultdict(float), 0)
        for part in program:
            free = 0.0
            ends: dict[fx.Node, tuple[float, str]] = {}
            for node in part.graph.nodes:
                seconds = prices.of(node)
                if (kind := kind_of(node)) is not None:
                    free = max(ran.seconds, free) + seconds
                    ends[node] = free, kind
                    ran.busy[kind] += seconds
                    ran.collectives += 1
                elif node.target is WAIT:
                    end, kind = ends[begun(node.args[0])]
                    ran.waited[kind] += max(0.0, end - ran.seconds)
                    ran.seconds = max(ran.seconds, end)
                elif seconds:
                    beside = max(0.0, free - ran.seconds)
                    ran.seconds += seconds + SLOWDOWN * min(seconds, beside / (1 + SLOWDOWN))
        return ran

    def hidden(self, kind: str) -> float:
        return 1 - self.waited[kind] / self.busy[kind]


def begun(node: fx.Node) -> fx.Node:
    """The collective whose result a node is, or a part of it."""
    while kind_of(node) is None:
        node = node.args[0]
    return node


if __name__ == "__main__":
    main()
