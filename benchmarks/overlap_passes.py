"""Schedules of overlapped plans, and those that torch's passes make of the same programs, by the same timeline.

    python benchmarks/overlap_passes.py [--layers 4] [--mesh fsdp=8]
    python benchmarks/overlap_passes.py --layers 32 --mesh fsdp=4,tp=2

The program of a plan without overlap, whose collectives all are waited for at once, is given to torch's
`schedule_overlap_bucketing` with the times that the plan was priced with. What it makes of it is run through in time as
plans are: calls one after another and slower beside collectives, one collective at a time on each link. Of the time of
collectives the part is hidden in which a call runs as well, as in a trace. Gradients are reduced in float32.

Torch also traces forward and backward as one program. Without recomputing, that gathers each parameter once.

The pass of torch 2.13 calls itself for ever on some programs with two process groups: that of 2.15 knows which waits it
is at.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from published_runs import LLAMA, graph_of
from record import Record, takes_json
from torch import fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwise.calls import facts
from shardwise.mesh import Cluster, Mesh
from shardwise.planning import Compute, Plan, Planner
from shardwise.planning._baselines import Baseline, BaselineRestriction
from shardwise.planning._overlap import with_overlap
from shardwise.planning._pins import Pins
from shardwise.planning._prices import SLOWDOWN
from shardwise.planning._timeline import links
from shardwise.running import RankProgram, emit

WAIT = torch.ops._c10d_functional.wait_tensor.default
# Collectives by their kind and the axes along which they run: that of FSDP, and that of tensor parallelism.
KINDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "parameters gathered": ("all_gather", (0,)),
    "gradients reduced": ("reduce_scatter", (0,)),
    "activations gathered": ("all_gather", (1,)),
    "activations reduced": ("reduce_scatter", (1,)),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--mesh", type=Mesh.parse, default=Mesh.parse("fsdp=8"), help="FSDP, or FSDP and TP")
    takes_json(parser)
    options = parser.parse_args()

    record = Record(__doc__, options.json)
    plan = llama_plan(options.layers, options.mesh)
    kinds = {name: kind for name, kind in KINDS.items() if kind[1][0] < plan.mesh.ndim}
    columns = {"schedule": "", "step": "{:.1f} ms", "exposed": "{:.1%}"}
    columns |= {f"{name}, hidden": "{:.0%}" for name in kinds}
    columns |= {"gathers": "{:,}", "reduce-scatters": "{:,}"}
    title = f"{options.layers} layers of Llama 3 8B on {plan.mesh.ranks} H100, {plan.mesh}"
    sheet = record.sheet(title, columns, wide=40)
    for schedule, ran in schedules(plan, llama_plan(options.layers, options.mesh, overlap=True)):
        hidden = [ran.hidden(*kind) for kind in kinds.values()]
        counts = (ran.count("all_gather"), ran.count("reduce_scatter"))
        sheet.add(schedule, ran.seconds * 1e3, ran.exposed, *hidden, *counts)


def llama_plan(layers: int, mesh: Mesh, *, overlap: bool = False) -> Plan:
    """FSDP on the first axis of a mesh, and on a second, tensor parallelism with scattered activations. Each rank of
    FSDP has one sequence, and each norm is one call."""
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=mesh.ranks)
    shape = replace(LLAMA["llama3-8b"], layers=layers)
    graph = graph_of(shape, mesh.shape[0], 8192, "eager", gives_logits=False, split=False)
    planner = Planner(graph, mesh, Cluster.of("h100"), reduce="float32", overlap=overlap)
    kind = Baseline("FSDP", ("fsdp", "scattered")[: mesh.ndim])
    plan = planner.restricted(BaselineRestriction(kind, planner.graph, planner.layouts), Pins(mesh))
    assert plan is not None
    return with_overlap(plan) if overlap and plan.ahead is None else plan


def schedules(plan: Plan, overlapped: Plan) -> "Iterator[tuple[str, Ran]]":
    """Steps of the first rank: of its programs as they are, as torch's pass changes them, and as the plan is."""
    yield "waits at once", Ran.of(parts(plan), plan)
    yield "torch's pass", Ran.of([by_torch(part, plan, buckets=False) for part in parts(plan)], plan)
    yield "torch's pass, buckets", Ran.of([by_torch(part, plan) for part in parts(plan)], plan)
    yield "the plan's", Ran.of(parts(overlapped), overlapped)
    yield "one program, waits at once", Ran.of([as_one(plan)], plan)
    yield "one program, torch's pass", Ran.of([by_torch(as_one(plan), plan, buckets=False)], plan)
    yield "one program, torch's pass, buckets", Ran.of([by_torch(as_one(plan), plan)], plan)


@cache
def device_mesh(mesh: Mesh) -> DeviceMesh:
    return mesh.to_device_mesh("cpu")


def program(plan: Plan) -> RankProgram:
    return emit(plan, 0, device_mesh(plan.mesh))


def parts(plan: Plan) -> list[fx.GraphModule]:
    of = program(plan)
    return [of.forward, *of.backward]


def as_one(plan: Plan) -> fx.GraphModule:
    """Forward and backward in one program, in which each parameter is gathered once."""
    of = program(plan)
    (backward,) = of.backward
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    made = graph.graph_copy(of.forward.graph, nodes)
    values = dict(zip(of.parts.forward.gives, made, strict=True))
    *taken, seed = backward.graph.find_nodes(op="placeholder")
    (nodes[seed],) = [nodes[node] for node in nodes if node.name == "seed"]
    for value, node in zip(of.parts.backward.takes, taken, strict=True):
        nodes[node] = values[value] if value in values else graph.node_copy(node)
    gradients = graph.graph_copy(backward.graph, nodes)
    graph.output((*made[: len(of.parts.results)], *gradients))
    gather_once(graph)
    module = fx.GraphModule(torch.nn.Module(), graph)
    # What is saved for backward has one storage in both.
    with FakeTensorMode() as mode:
        given = (node.meta["val"] for node in graph.find_nodes(op="placeholder"))
        inputs = [torch.empty(each.shape, dtype=each.dtype) for each in given]
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*inputs)
    return module


def gather_once(graph: fx.Graph) -> None:
    """What is made of one input alone is made once."""
    known: dict[str, fx.Node] = {}
    alone = set(graph.find_nodes(op="placeholder"))
    for node in list(graph.nodes):
        if node.op == "call_function" and len(node.all_input_nodes) == 1 and node.args[0] in alone:
            same = known.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
            if same is node:
                alone.add(node)
            else:
                node.replace_all_uses_with(same)
                graph.erase_node(node)


def by_torch(part: fx.GraphModule, plan: Plan, *, buckets: bool = True) -> fx.GraphModule:
    """With the defaults of the pass, in particular for the memory that it may use."""
    from torch._inductor import comm_analysis
    from torch._inductor.fx_passes import overlap_scheduling

    prices = Prices(plan)

    def milliseconds(node: fx.Node, size: int | None = None) -> float:
        return prices.of(node, size) * 1e3

    tracker = partial(overlap_scheduling.MemoryTracker, device_filter=lambda device: True)
    with (
        # It measures calls, asks which GPU there is, and counts no memory but that of a GPU.
        patch.object(overlap_scheduling, "estimate_roofline_runtime_ms", milliseconds),
        patch.object(overlap_scheduling, "MemoryTracker", tracker),
        patch.object(comm_analysis, "get_gpu_type", lambda: comm_analysis.NVIDIA_GPU_TYPE.HOPPER),
    ):
        return overlap_scheduling.schedule_overlap_bucketing(
            part,
            collective_bucketing=buckets,
            pre_bucketing_fsdp_collectives=buckets,
            custom_runtime_estimation=milliseconds,
            compute_estimator="analytical",
        )


class Prices:
    """What nodes of a plan's program take, in seconds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        mesh = device_mesh(plan.mesh)
        self.axes = {mesh.get_group(axis).group_name: (axis,) for axis in range(mesh.ndim)}
        self.entries = dict(zip(map(id, plan.schedule.entries), plan.cost.entries, strict=True))

    def of(self, node: fx.Node, size: int | None = None) -> float:
        if (kind := kind_of(node)) is not None:
            given, made = tensors(node.args[0]), tensors(node)
            if size is None:
                size = max(sum(t.nbytes for t in given), sum(t.nbytes for t in made))
            axes, mesh = self.along(node), self.plan.mesh
            ranks = math.prod(mesh.shape[axis] for axis in axes)
            link = self.plan.cluster.link(mesh, *axes)
            return link.time(kind, size, ranks, itemsize=given[0].dtype.itemsize)  # type: ignore[arg-type]
        entry = node.meta.get("shardwise")
        if not isinstance(entry, Compute) or node.op != "call_function":
            return 0.0
        seconds = self.entries.get(id(entry), 0.0)
        same = str(node.target) == entry.node.op or "attention" in str(node.target)
        return seconds if same else 0.0

    def along(self, node: fx.Node) -> tuple[int, ...]:
        """The axes of a collective's group."""
        return self.axes.get(node.args[-1], tuple(range(self.plan.mesh.ndim)))


def kind_of(node: fx.Node) -> str | None:
    return facts(node.target).collective if isinstance(node.target, OpOverload) else None


def tensors(value: object) -> list[torch.Tensor]:
    values = value if isinstance(value, list | tuple) else [value]
    found = [each.meta["val"] for each in values if isinstance(each, fx.Node)]
    return [tensor for each in found for tensor in (each if isinstance(each, list | tuple) else [each])]


@dataclass
class Ran:
    """Programs run through in time: calls are one stream, and each link of the mesh another. `update` are the seconds
    after them that the optimizer takes."""

    update: float
    now: float = 0.0
    calls: list[tuple[float, float]] = field(default_factory=list)
    collectives: list[tuple[str, tuple[int, ...], float, float]] = field(default_factory=list)

    @classmethod
    def of(cls, program: list[fx.GraphModule], plan: Plan) -> "Ran":
        prices, link = Prices(plan), links(plan.mesh, plan.cluster)
        ran = cls(plan.cost.update)
        for part in program:
            free: dict[str, float] = defaultdict(float)
            ends: dict[fx.Node, float] = {}
            for node in part.graph.nodes:
                seconds = prices.of(node)
                if (kind := kind_of(node)) is not None:
                    axes = prices.along(node)
                    start = max(ran.now, *(free[link[axis]] for axis in axes))
                    ends[node] = start + seconds
                    free |= {link[axis]: ends[node] for axis in axes}
                    ran.collectives.append((kind, axes, start, ends[node]))
                elif node.target is WAIT:
                    ran.now = max(ran.now, ends[begun(node.args[0])])
                elif seconds:
                    beside = max(0.0, *free.values(), ran.now) - ran.now
                    end = ran.now + seconds + SLOWDOWN * min(seconds, beside / (1 + SLOWDOWN))
                    ran.calls.append((ran.now, end))
                    ran.now = end
        return ran

    @property
    def seconds(self) -> float:
        return self.now + self.update

    @property
    def exposed(self) -> float:
        """The share of the step in which no call runs."""
        return (self.now - sum(end - start for start, end in self.calls)) / self.seconds

    def hidden(self, kind: str, along: tuple[int, ...]) -> float:
        """Of the time of collectives of a kind along any of the axes, the part in which a call runs as well."""
        times = self.times(kind, along)
        starts, ends = np.array(self.calls).T
        passed = np.cumsum(ends - starts)
        # Seconds of calls until a time: as many between two calls as after the first.
        corners = np.stack([starts, ends], 1).ravel(), np.stack([passed - (ends - starts), passed], 1).ravel()
        beside = np.diff(np.interp(times, *corners))
        return float(beside.sum() / np.diff(times).sum())

    def times(self, kind: str, along: tuple[int, ...]) -> np.ndarray:
        """When each starts and ends."""
        found = ((name, axes, [start, end]) for name, axes, start, end in self.collectives)
        return np.array(
            [pair for name, axes, pair in found if name == kind and axes in {(axis,) for axis in along}]
        )

    def count(self, kind: str) -> int:
        return sum(name == kind for name, *_ in self.collectives)


def begun(node: fx.Node) -> fx.Node:
    """The collective whose result a node is, or a part of it."""
    while kind_of(node) is None:
        node = node.args[0]
    return node


if __name__ == "__main__":
    main()
