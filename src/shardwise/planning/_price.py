"""`price`: what a step costs in a layout that people already run, given by name.

A rank's pass comes from a plan: on the axis of tensor parallelism every choice is fixed as in Megatron-LM, and on one
rank there is nothing to choose. Data parallelism is simulated around that (`_data_parallel`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import _pytree as pytree

from ..calls import Call
from ..display import Bar, Bars, Block, Heading, Shown, Table
from ..errors import UsageError, require_given
from ..graph import Execution, Graph, TensorInfo, autocast_to, capture
from ..mesh import DEFAULT_CLUSTER, Cluster, Link, Mesh
from ..placements import Row, shard
from ..progress import Progress, silent
from ..rules import offered_rows
from ._baselines import Baseline, BaselineRestriction, Mode
from ._call_prices import CallPrice, form_price
from ._data_parallel import SimulatedStep, Traffic, kept_gradients, simulated_step, transient
from ._named import NamedLayout, mesh_of
from ._offers import Offers
from ._pass import Pass
from ._pins import Pins
from ._pipeline_price import PipelinePrice, Stage, parts_of, pipelined
from ._plan import Plan
from ._planner import Planner
from ._prices import OptimizerCost, host_seconds
from ._recompute import recomputed
from ._schedule import Compute, Entry, Move
from ._summary import bytes_text, sparkline, time_text


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: `compute` with what is slower beside collectives and copies for them, `recompute`, collectives
    of tensor and of data parallelism that are waited for, the optimizer, and what the busiest rank of a `pipeline`
    waits for others. The host needs `starting` to start all passes: where they take less, devices are `waiting`."""

    compute: float
    recompute: float
    tensor_parallel: float
    data_parallel: float
    optimizer: float
    pipeline: float = 0.0
    starting: float = 0.0

    @property
    def waiting(self) -> float:
        return max(0.0, self.starting - self.compute - self.recompute - self.tensor_parallel)

    @property
    def parts(self) -> dict[str, float]:
        """What a step is the sum of."""
        parts = {name: seconds for name, seconds in asdict(self).items() if name != "starting"}
        return parts | {"waiting_for_the_host": self.waiting}

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class StepMemory:
    """Bytes on a device when it holds most: parameters and buffers, gradients and the optimizer's states as they are
    kept, activations, and `workspace`: what is gathered or about to be reduced."""

    parameters: int
    gradients: int
    states: int
    activations: int
    workspace: int

    @property
    def bytes(self) -> int:
        return sum(asdict(self).values())


# What the caching allocator of torch reserves beyond what is allocated, as a share of that: blocks of sizes that are
# not needed again. Published runs of torchtitan have 0 to 13 %.
FRAGMENTATION = 0.06


def reserved_bytes(layout: NamedLayout, over_time: Sequence[StepMemory]) -> float:
    """What the allocator reserves for what is held over time.

    Where gradients are sharded, collectives have streams of their own, and what one stream has freed is not used by
    another: the most of each counts.
    """
    if layout.zero < 2 or layout.shards == 1:
        most = float(max(memory.bytes for memory in over_time))
    else:
        most = float(sum(max(part) for part in zip(*(vars(m).values() for m in over_time), strict=True)))
    return most * (1 + FRAGMENTATION)


@dataclass(frozen=True)
class Held:
    """What is held in a stretch of the last pass, when it is most: forward or backward of a block, or outside."""

    block: str
    backward: bool
    memory: StepMemory


@dataclass(frozen=True)
class Price(Shown):
    """What a step costs: `time` by parts, what is `held` over the last pass, the `traffic` of all collectives, and the
    `plan` of one pass.

    The plan is that of `tp` ranks for one micro-batch; a step has so many `passes` of it, on `samples` samples each.
    """

    name: str
    layout: NamedLayout
    mesh: Mesh
    cluster: Cluster
    samples: int
    passes: int
    time: StepTime
    held: tuple[Held, ...]
    traffic: tuple[Traffic, ...]
    plan: Plan
    pipeline: PipelinePrice | None = None

    @property
    def seconds(self) -> float:
        """Of one step."""
        return self.time.seconds

    @cached_property
    def memory(self) -> StepMemory:
        """What a device holds when it holds most."""
        return max((each.memory for each in self.held), key=lambda memory: memory.bytes)

    @property
    def peak(self) -> int:
        """Bytes held on a device when it holds most."""
        return self.memory.bytes

    @property
    def reserved(self) -> int:
        """Bytes that torch's caching allocator reserves on a device, as `torch.cuda.max_memory_reserved` has them."""
        return round(reserved_bytes(self.layout, [each.memory for each in self.held]))

    def __repr__(self) -> str:
        step, held = time_text(self.seconds), bytes_text(self.peak)
        return f"<Price of {self.name} as {self.layout} on {self.cluster.name}: {step} a step, {held}>"

    def blocks(self) -> Iterator[Block]:
        yield Heading(1, f"{self.name}: {time_text(self.seconds)} a step")
        passes = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        samples = "1 sample" if self.samples == 1 else f"{self.samples} samples"
        yield (
            f"{self.layout}, {self.plan.graph.execution}, on {self.mesh.ranks} devices of {self.cluster.name}, "
            f"mesh {self.mesh}: "
            f"{passes} a step, of {samples} on each data parallel rank"
        )
        yield Bars(_bars(self.time.parts, self.seconds, time_text))
        limit = self.cluster.device.memory
        fits = "" if self.peak <= limit else ", which it exceeds"
        yield Heading(2, f"memory: {bytes_text(self.peak)} of {bytes_text(limit)} a device{fits}")
        yield Bars(_bars(asdict(self.memory), self.peak, bytes_text))
        if self.pipeline is None:
            yield f"over the last pass: `{sparkline(tuple(each.memory.bytes for each in self.held))}`"
        yield f"reserved by torch's allocator: about {bytes_text(self.reserved)}"
        if self.pipeline is not None:
            yield Heading(2, f"pipeline: {self.pipeline.time.bubble:.1%} of the ranks' time is idle")
            yield _stage_table(self.pipeline)
        if self.traffic:
            yield Heading(2, "collectives")
            yield _table(self.traffic)

    def to_json(self) -> dict[str, Any]:
        """All but the plan, as a document."""
        return {
            "name": self.name,
            "layout": str(self.layout),
            "mesh": str(self.mesh),
            "cluster": self.cluster.name,
            "execution": self.plan.graph.execution,
            "samples": self.samples,
            "passes": self.passes,
            "seconds": self.seconds,
            "time": self.time.parts,
            "peak": self.peak,
            "reserved": self.reserved,
            "memory": asdict(self.memory),
            "traffic": [asdict(each) for each in self.traffic],
        } | ({} if self.pipeline is None else _pipeline_json(self.pipeline))


def _bars(parts: Mapping[str, float], whole: float, text: Callable[[float], str]) -> tuple[Bar, ...]:
    return tuple(
        Bar(name.replace("_", " "), text(part), part / whole) for name, part in parts.items() if part > 0
    )


def _table(traffic: Sequence[Traffic]) -> Table:
    """The longest first; those whose sizes look the same together."""
    found: dict[tuple[str, ...], tuple[int, float]] = {}
    for each in traffic:
        key = each.purpose, each.collective, f"{each.axis}={each.ranks}", bytes_text(each.size)
        count, seconds = found.get(key, (0, 0.0))
        found[key] = count + each.count, seconds + each.seconds
    longest = sorted(found.items(), key=lambda pair: -pair[1][1])
    rows = [(*key, f"{count:,d}", time_text(seconds)) for key, (count, seconds) in longest]
    return Table(("purpose", "collective", "over", ">each", ">times", ">together"), rows)


def _stage_table(line: PipelinePrice) -> Table:
    rows = []
    for number, stage in enumerate(line.stages):
        first, last = stage.parts[0], stage.parts[-1]
        parts = first if first == last else f"{first} to {last}"
        times = stage.time.forward, stage.time.backward, stage.time.sends
        held = stage.parameters + stage.gradients + stage.states + stage.activations + stage.workspace
        row = (
            str(number),
            str(stage.rank),
            parts,
            *map(time_text, times),
            str(stage.in_flight),
            bytes_text(held),
        )
        rows.append(row)
    columns = (">stage", ">rank", "parts", ">forward", ">backward", ">send", ">in flight", ">memory")
    return Table(columns, rows)


def _pipeline_json(line: PipelinePrice) -> dict[str, Any]:
    return {"bubble": line.time.bubble, "stages": [asdict(stage) for stage in line.stages]}


def price(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    layout: NamedLayout | str | None = None,
    mesh: Mesh | DeviceMesh | str | None = None,
    cluster: Cluster | str = DEFAULT_CLUSTER,
    execution: Execution = "eager",
    optimizer: str = "adam",
    progress: Progress | None = None,
) -> Price:
    """What a training step of a model costs in a layout that is given by name: `"fsdp=8,tp=2,micro_batch=1"`.

    `args` and `kwargs` are the whole batch of a step: tensors whose first dim is that of the first tensor are cut into
    micro-batches. `layout` has a pipeline (`pp`, with `schedule` and `stages`), data parallel axes (`dp`, `fsdp` with
    `zero` 1 to 3), tensor parallelism (`tp`, with `sequence`), micro-batches, recomputing and the dtype of reductions.
    `mesh` gives the axes another order than `pp`, `dp`, `fsdp`, `tp`, the last of which are neighbours. Other options
    are those of `plan`. Nothing is run.

    >>> mlp = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    >>> cost = price(mlp, (torch.rand(32, 64),), layout="dp=2,fsdp=4", cluster="laptop")
    >>> cost.passes, cost.samples, cost.mesh.ranks
    (1, 4, 8)
    """
    require_given(layout, "price", "a layout", "shardwise.price(model, args, layout='fsdp=8,tp=2')")
    assert layout is not None
    note = progress or silent
    named = NamedLayout.of(layout)
    on = mesh_of(named, None if mesh is None else Mesh.of(mesh))
    micro, passes, (given, words) = micro_batch(named, args, kwargs)
    note("capturing")
    graph = capture(model, given, words, execution=execution, split_products=named.split)
    return price_graph(
        graph,
        layout=named,
        mesh=on,
        cluster=cluster,
        optimizer=optimizer,
        samples=micro,
        passes=passes,
        progress=progress,
    )


def micro_batch(
    layout: NamedLayout, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[int, int, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Samples of one pass, passes of a step, and the arguments of one pass."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    batch = next((leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim), None)
    if batch is None:
        raise UsageError("the arguments have no tensor with a batch dim: give the batch of a whole step")
    ranks = layout.dp * layout.fsdp
    local, rest = divmod(batch, ranks)
    if rest or not local:
        raise UsageError(
            f"a batch of {batch} cannot be cut among the {ranks} data parallel ranks of layout {layout}: "
            f"give a multiple of {ranks}"
        )
    micro = layout.micro_batch or local
    if local % micro:
        raise UsageError(
            f"micro_batch={micro} does not divide the {local} samples of a rank: give one that does"
        )
    cut = [
        leaf[:micro] if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == batch else leaf
        for leaf in leaves
    ]
    return micro, local // micro, pytree.tree_unflatten(cut, spec)


@autocast_to(None)
def price_graph(
    graph: Graph,
    *,
    layout: NamedLayout,
    mesh: Mesh | None = None,
    cluster: Cluster | str = DEFAULT_CLUSTER,
    optimizer: str = "adam",
    samples: int = 1,
    passes: int = 1,
    progress: Progress | None = None,
) -> Price:
    """The price of a step of so many passes, from the graph of one pass on so many samples."""
    plan = tensor_parallel_plan(
        graph, layout, mesh_of(layout, mesh), Cluster.of(cluster), optimizer, progress
    )
    return price_plan(plan, layout=layout, mesh=mesh, cluster=cluster, samples=samples, passes=passes)


def price_plan(
    plan: Plan,
    *,
    layout: NamedLayout,
    mesh: Mesh | None = None,
    cluster: Cluster | str,
    samples: int = 1,
    passes: int = 1,
) -> Price:
    """The price of a step of so many passes, from the plan of one pass on the ranks of tensor parallelism."""
    cluster, mesh = Cluster.of(cluster), mesh_of(layout, mesh)
    one = Pass(plan, overlap=layout.overlap)
    if layout.pp > 1:
        return _pipelined(one, layout, mesh, cluster, samples, passes)
    again = recomputed(one, layout.recompute)
    line = simulated_step(one, layout, mesh, cluster, passes, {r.begin: r.seconds for r in again.values()})
    repeated = [place for each in again.values() for place in each.entries]
    inside = _tensor_parallel_traffic(one, repeated, passes)
    return Price(
        plan.graph.name,
        layout,
        mesh,
        cluster,
        samples,
        passes,
        _time(one, layout, line, repeated, passes),
        _held(one, layout, passes),
        (*inside, *line.traffic),
        plan,
    )


def _pipelined(
    one: Pass, layout: NamedLayout, mesh: Mesh, cluster: Cluster, samples: int, passes: int
) -> Price:
    plan = one.plan
    repeated = [place for each in recomputed(one, layout.recompute).values() for place in each.entries]
    line = pipelined(parts_of(one, layout), layout, mesh, cluster, passes, plan.cost.update, plan.optimizer)
    return Price(
        plan.graph.name,
        layout,
        mesh,
        cluster,
        samples,
        passes,
        pipeline_time(line),
        pipeline_held(line),
        (*_tensor_parallel_traffic(one, repeated, passes), *line.traffic),
        plan,
        line,
    )


def pipeline_time(line: PipelinePrice) -> StepTime:
    """Seconds of a step by purpose, on the busiest rank."""
    busy = max(line.time.busy)
    known = line.tensor_parallel, line.data_parallel, line.optimizer
    compute = busy - line.recompute - sum(known) - line.waiting
    passes = compute + line.recompute + line.tensor_parallel
    starting = passes + line.waiting if line.waiting else 0.0
    return StepTime(compute, line.recompute, *known, pipeline=line.time.seconds - busy, starting=starting)


def pipeline_held(line: PipelinePrice) -> tuple[Held, ...]:
    """What is held on each rank of a pipeline, when it is most."""
    names = ("parameters", "gradients", "states", "activations", "workspace")
    ranks: dict[int, list[Stage]] = {}
    for stage in line.stages:
        ranks.setdefault(stage.rank, []).append(stage)
    return tuple(
        Held(f"rank {rank}", True, StepMemory(*(sum(getattr(s, name) for s in stages) for name in names)))
        for rank, stages in sorted(ranks.items())
    )


def tensor_parallel_plan(
    graph: Graph,
    layout: NamedLayout,
    mesh: Mesh,
    cluster: Cluster,
    optimizer: str,
    progress: Progress | None = None,
) -> Plan:
    """The plan of one pass on the ranks of tensor parallelism."""
    plans = tensor_parallel_plans(graph, layout, mesh, cluster, optimizer, progress)
    return min(plans, key=lambda plan: _with_recompute(Pass(plan), layout))


def tensor_parallel_plans(
    graph: Graph,
    layout: NamedLayout,
    mesh: Mesh,
    cluster: Cluster,
    optimizer: str,
    progress: Progress | None = None,
) -> list[Plan]:
    """Plans of one pass on the ranks of tensor parallelism, the first without split products.

    Products are cut as in Megatron-LM, which is the cheapest way if parameters are sharded and never move, and other
    tensors are sharded only by products with them. With `sequence`, parameters stay so, and what is between the
    products is scattered instead of replicated. With `split`, products of activations are split against the collectives
    that take what they make, or also against those that bring what they read. Plans are found without recomputing,
    which decides what is faster.
    """
    inner = Mesh(("tp",), (layout.tp,))
    if "tp" in mesh.names[:-1]:  # its ranks are not neighbours
        link = cluster.link(mesh, "tp")
        if not isinstance(link, Link):
            raise UsageError(f"mesh {mesh} puts some ranks of tp into one island: make tp its last axis")
        cluster = cluster.with_axes(tp=link)
    planner = Planner(graph, inner, cluster, optimizer=optimizer, progress=progress)
    planner.offers = Offers(graph, known=_rows(lambda row: False))
    made = _megatron(planner, "products", Pins(inner))
    if not layout.sequence:
        return [made]
    stored = Pins(inner, {entry.target: made.inputs[entry.name] for entry in graph.with_role("parameter")})
    found = []
    for splits in (lambda row: False, *((_scatters, lambda row: True) if layout.split else ())):
        planner.offers = Offers(graph, known=_rows(splits))
        found.append(_megatron(planner, "scattered", stored))
    return found


def _rows(splits: Callable[[Row], bool]) -> Callable[[Call], list[Row] | None]:
    """The rows of a call; of those that split it, as torch's asynchronous tensor parallelism does, some of those of
    layers, and none of gradients of weights."""

    def known(call: Call) -> list[Row] | None:
        rows = offered_rows(call)
        if rows is None or "weight" not in call:
            return None if rows is None else [row for row in rows if row.local != "split"]
        return [row for row in rows if row.local != "split" or splits(row)]

    return known


def _scatters(row: Row) -> bool:
    """Whether a split product is one whose results are summed over ranks, and scattered."""
    return row.inputs[1] == shard(1)


def _with_recompute(one: Pass, layout: NamedLayout) -> float:
    """The seconds of a pass, and of what its backward computes again."""
    return sum(one.seconds) + sum(each.seconds for each in recomputed(one, layout.recompute).values())


def _megatron(planner: Planner, mode: Mode, pins: Pins) -> Plan:
    """As Megatron-LM does, or as nearly as a model allows: at the least, everything can be replicated."""
    attempts: tuple[tuple[Mode, bool], ...] = ((mode, True), ("stationary", True), ("stationary", False))
    for moves, cut in attempts:
        kind = Baseline("tensor parallel", (moves,), cut)
        made = planner.restricted(BaselineRestriction(kind, planner.graph, planner.layouts), pins)
        if made is not None:
            return made
    raise UsageError(f"no plan of {planner.graph.name} on {planner.mesh} was found in time")


def _time(one: Pass, layout: NamedLayout, line: SimulatedStep, repeated: list[int], passes: int) -> StepTime:
    inside = [_waiting(one, place) for place in range(len(one.entries))]
    again = sum(one.seconds[place] - inside[place] for place in repeated)
    tensor_parallel = passes * (sum(inside) + sum(inside[place] for place in repeated))
    return StepTime(
        compute=line.passes - tensor_parallel - passes * again + line.copies + line.slowdown,
        recompute=passes * again,
        tensor_parallel=tensor_parallel,
        data_parallel=line.exposed,
        optimizer=one.plan.cost.update / layout.shards,
        starting=passes * _starting(one, repeated),
    )


def _waiting(one: Pass, place: int) -> float:
    """How long an entry waits for collectives."""
    if isinstance(one.entries[place], Move):
        return one.seconds[place]
    price = _split(one, one.entries[place])
    return 0.0 if price is None else price.seconds - price.compute


def _split(one: Pass, entry: Entry) -> CallPrice | None:
    """The price of a call that communicates."""
    if not isinstance(entry, Compute) or not entry.choice.group_axes:
        return None
    return form_price(one.plan.graph.call(entry.node), entry.choice, one.plan.cluster)


def _starting(one: Pass, repeated: list[int]) -> float:
    """How long the host needs to start a pass."""
    run = [*one.entries, *(one.entries[place] for place in repeated)]
    again = sum(not isinstance(one.entries[place], Move) for place in repeated)
    collectives = sum(len(entry.change.collectives) for entry in run if isinstance(entry, Move))
    return host_seconds(one.plan.graph, one.plan.cluster.device, again, collectives)


def _tensor_parallel_traffic(one: Pass, repeated: list[int], passes: int) -> Iterator[Traffic]:
    """The collectives of passes, those of one kind and size together."""
    found: dict[tuple[str, int], tuple[int, float]] = {}
    for entry in (*one.entries, *(one.entries[place] for place in repeated)):
        performed = (
            [(s.kind, s.size, s.seconds) for s in entry.change.collectives] if isinstance(entry, Move) else []
        )
        if (price := _split(one, entry)) is not None:
            performed += price.collectives
        for kind, size, taken in performed:
            count, seconds = found.get((kind, size), (0, 0.0))
            found[kind, size] = count + passes, seconds + passes * taken
    ranks = one.plan.mesh.ranks
    for (kind, size), (count, seconds) in found.items():
        yield Traffic("tensor parallelism", kind, "tp", ranks, size, count, seconds)  # type: ignore[arg-type]


def _held(one: Pass, layout: NamedLayout, passes: int) -> tuple[Held, ...]:
    """What is kept throughout, and the rest when there is most of it, in each stretch of a pass."""
    cost, optimizer = one.plan.cost, OptimizerCost.of(one.plan.optimizer)
    tensors = [tensor for bucket in one.buckets for tensor in bucket.tensors]
    parameters, states = sum(tensor.bytes for tensor in tensors), 0
    for bucket in one.buckets:
        for name, tensor in zip(bucket.parameters, bucket.tensors, strict=True):
            states += optimizer.state_bytes(tensor) if name in one.gradients else 0
    buffers = cost.lasting - parameters - states
    if layout.zero == 3:
        master = sum(_master_bytes(tensor) for tensor in tensors) if optimizer.master else 0
        states -= master  # the shards are the copy in float32, from which what is gathered is cast
        parameters = (master or parameters) // layout.shards
    found = []
    rest = zip(one.blocks, range(len(one.entries)), _varying(one, layout, passes), strict=True)
    for (block, backward), stretch in groupby(rest, key=lambda entry: (entry[0], entry[1] >= one.turn)):
        gradients, activations, workspace = max((varying for *_, varying in stretch), key=sum)
        kept = parameters + buffers, gradients, states // layout.shards, activations, workspace
        found.append(Held(block, backward, StepMemory(*kept)))
    return tuple(found)


def _master_bytes(parameter: TensorInfo) -> int:
    return 4 * parameter.numel if parameter.dtype.itemsize < 4 else 0


def _varying(one: Pass, layout: NamedLayout, passes: int) -> Iterator[tuple[int, int, int]]:
    """Gradients, activations and workspace while each entry runs, in the last pass."""
    entries = len(one.entries)
    kept, dropped, held = ([0] * (entries + 1) for _ in range(3))
    for first, size in kept_gradients(one, layout):
        kept[first if passes == 1 else 0] += size  # those of earlier passes are there
    for each in recomputed(one, layout.recompute).values():
        dropped[each.end + 1] += each.bytes
        dropped[each.begin] -= each.bytes
    for first, last, size in transient(one, layout):
        held[first] += size
        held[last + 1] -= size
    activations = (a - b for a, b in zip(one.activations, accumulate(dropped), strict=False))
    return zip(accumulate(kept), activations, accumulate(held), strict=False)
