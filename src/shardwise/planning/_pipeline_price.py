"""Pipelines around the pass of a rank: its parts, stages of them, and what a step of these takes and holds.

A part is a block of the model, or what is before the first or after the last of them. What a part takes and keeps is
read off the plan of one pass. A stage is a run of parts with data parallelism around it (`_data_parallel`), and its
schedule is torch's, simulated (`_stage_times`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from ..dtensor import pipeline_actions, stage_ranks
from ..errors import UsageError
from ..graph import Ref, TensorInfo
from ..mesh import Cluster, Mesh
from ._cuts import best_cuts
from ._data_parallel import SimulatedStep, Traffic, reduced_bytes, simulated_step
from ._named import NamedLayout
from ._pass import Bucket, Pass
from ._prices import OptimizerCost
from ._recompute import recomputed
from ._schedule import Compute, Move, Value
from ._stage_times import PipelineTime, StageTime, in_flight, simulated


@dataclass(frozen=True)
class Part:
    """A part of a model in one pass: seconds of `forward` and of backward (gradients of what came in with what is
    computed `again` for them, and of weights), of these in collectives of tensor parallelism (`moves`), and in which
    the host starts all this; its parameters; bytes that it keeps for backward, that it holds at most, and that go on to
    the next part."""

    name: str = field(compare=False)
    forward: float
    input: float
    weight: float
    moves: float
    again: float
    starting: float
    parameters: tuple[tuple[str, TensorInfo], ...] = field(compare=False)
    sizes: tuple[TensorInfo, ...]
    kept: int
    most: int
    sends: int

    @property
    def backward(self) -> float:
        return self.input + self.weight


def parts_of(one: Pass, layout: NamedLayout) -> tuple[Part, ...]:
    """The parts of a pass in which something happens, in order."""
    return tuple(
        part for part in _Parts(one, layout).found if part.forward + part.backward or part.parameters
    )


class _Parts:
    def __init__(self, one: Pass, layout: NamedLayout) -> None:
        self.one, self.layout = one, layout
        self.names = list(dict.fromkeys(block for block in one.blocks[: one.turn] if block))
        self.at = [self._part(place) for place in range(len(one.entries))]
        for place in range(len(one.entries)):
            self.at[place] = self._moved(place)

    @cached_property
    def _spans(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The first and the last entry in blocks, of forward and of backward."""
        turn, inside = self.one.turn, [place for place, block in enumerate(self.one.blocks) if block]
        forward = [place for place in inside if place < turn] or [turn]
        backward = [place for place in inside if place >= turn] or [turn]
        return (forward[0], forward[-1]), (backward[0], backward[-1])

    def _part(self, place: int) -> int:
        """The part of an entry: 0 before blocks, those, and the last one after blocks."""
        block, last = self.one.blocks[place], len(self.names) + 1
        if block in self.names:
            return self.names.index(block) + 1
        if place < self.one.turn:
            first, end = self._spans[0]
            return 0 if place < first else last if place > end else self._part(place - 1)
        first, end = self._spans[1]
        return last if place < first else 0 if place > end else self._part(place - 1)

    def _moved(self, place: int) -> int:
        """The part of an entry; what is gathered for a later part is gathered there, from what was sent."""
        one, entry, part = self.one, self.one.entries[place], self.at[place]
        if not isinstance(entry, Move) or one.bytes_of(entry.target) <= one.bytes_of(entry.source):
            return part
        users = [
            self.at[at]
            for at in self._users[one.owners[entry.target]]
            if (at < one.turn) is (place < one.turn)
        ]
        return (min if place < one.turn else max)(users, default=part)

    @property
    def found(self) -> tuple[Part, ...]:
        one, turn, count = self.one, self.one.turn, len(self.names) + 2
        forward, backward, weight, moves, again = ([0.0] * count for _ in range(5))
        for place, seconds in enumerate(one.seconds):
            (forward if place < turn else backward)[self.at[place]] += seconds
            if isinstance(one.entries[place], Move):
                moves[self.at[place]] += seconds
        for place in {one.made_at[owner] for owner in self._gradients if owner in one.made_at}:
            if isinstance(one.entries[place], Compute):
                weight[self.at[place]] += one.seconds[place]
        kept = self._kept()
        most = self._most(kept)
        for each in recomputed(one, self.layout.recompute).values():
            part = self.at[each.begin]
            again[part] += each.seconds
            kept[part] -= each.bytes
        sends, starting = self._sends(), self._starting()
        parameters = self._parameters()
        names = ("first", *self.names, "last")
        return tuple(
            Part(
                names[part],
                forward[part],
                backward[part] - weight[part] + again[part],
                weight[part],
                moves[part],
                again[part],
                starting[part],
                parameters[part],
                tuple(tensor for _, tensor in parameters[part]),
                max(kept[part], 0),
                most[part],
                sends[part],
            )
            for part in range(count)
        )

    @cached_property
    def _gradients(self) -> set[Value]:
        return {self.one.owners[value] for value in self.one.gradients.values()}

    @cached_property
    def _users(self) -> Mapping[Value, list[int]]:
        users: dict[Value, list[int]] = defaultdict(list)
        for place, entry in enumerate(self.one.entries):
            for value in entry.used:
                users[self.one.owners[value]].append(place)
        return users

    @cached_property
    def _made(self) -> list[tuple[Value, int]]:
        """What forward makes, and the part that does."""
        one = self.one
        return [
            (value, self.at[place])
            for value, place in one.made_at.items()
            if place < one.turn and one.owners[value] == value
        ]

    def _kept(self) -> list[int]:
        """Bytes of what forward makes that each part's backward uses."""
        kept = [0] * (len(self.names) + 2)
        for value, _ in self._made:
            for part in {self.at[place] for place in self._users[value] if place >= self.one.turn}:
                kept[part] += self.one.bytes_of(value)
        return kept

    def _starting(self) -> list[float]:
        """Seconds in which the host starts the calls and collectives of each part, without what it needs for any."""
        one, found = self.one, [0.0] * (len(self.names) + 2)
        graph, device = one.plan.graph, one.plan.cluster.device
        again = Counter(p for each in recomputed(one, self.layout.recompute).values() for p in each.entries)
        for place, entry in enumerate(one.entries):
            if isinstance(entry, Move):
                kind, count = "collective", len(entry.change.collectives)
            elif isinstance(entry, Compute) and graph.region(entry.node) is None:
                kind, count = "eager", 1
            elif isinstance(entry, Compute) and not entry.node.facts.view:
                border = graph.kernels.borders.get(entry.node.name)
                kind, count = "compiled", border is None or border.starts
            else:
                continue
            seconds = device.host_seconds(kind, count) - device.host_seconds(kind, 0)
            found[self.at[place]] += (1 + again[place]) * seconds
        return found

    def _most(self, kept: Sequence[int]) -> list[int]:
        """The most bytes while a part runs, without what parts before it keep."""
        most = list(kept)
        for place, held in enumerate(self.one.activations):
            part = self.at[place]
            most[part] = max(most[part], held - sum(kept[:part]))
        return most

    def _sends(self) -> list[int]:
        """Bytes that follow from parameters and are used by forward of later parts, by boundary."""
        one, sends = self.one, [0] * (len(self.names) + 2)
        follows = {Value(Ref(entry.name)) for entry in one.plan.graph.with_role("parameter")}
        for entry in one.entries[: one.turn]:
            if any(one.owners[value] in follows for value in entry.used):
                follows |= {one.owners[value] for value in entry.made}
        for value, part in self._made:
            last = max((self.at[place] for place in self._users[value] if place < one.turn), default=part)
            if value in follows:
                for boundary in range(part, last):
                    sends[boundary] += one.bytes_of(value)
        return sends

    def _parameters(self) -> list[tuple[tuple[str, TensorInfo], ...]]:
        """The parameters that each part's forward uses, by name."""
        found: list[dict[str, TensorInfo]] = [{} for _ in range(len(self.names) + 2)]
        for bucket in self.one.buckets:
            for name, tensor in zip(bucket.parameters, bucket.tensors, strict=True):
                uses = self._users[Value(Ref(name))]
                for part in {self.at[place] for place in uses if place < self.one.turn} or {0}:
                    found[part][name] = tensor
        return [tuple(each.items()) for each in found]


# -- stages


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline: which parts, on which rank, its times, micro-batches in flight, and bytes on a device."""

    parts: tuple[str, ...]
    rank: int
    time: StageTime
    in_flight: int
    parameters: int
    gradients: int
    states: int
    activations: int
    workspace: int


@dataclass(frozen=True)
class PipelinePrice:
    """A priced pipeline: its stages and their simulated step; of a micro-batch on the busiest rank seconds by purpose;
    and the collectives of data parallelism of all stages, with what goes between these."""

    stages: tuple[Stage, ...]
    time: PipelineTime
    tensor_parallel: float
    recompute: float
    data_parallel: float
    optimizer: float
    waiting: float
    traffic: tuple[Traffic, ...]


def pipelined(
    parts: Sequence[Part],
    layout: NamedLayout,
    mesh: Mesh,
    cluster: Cluster,
    passes: int,
    update: float,
    optimizer: str,
    cuts: Sequence[int] | None = None,
) -> PipelinePrice:
    """A step of so many micro-batches; `update` is the seconds in which one rank would update all parameters.

    Without `cuts`, the boundaries of stages, the best are found.
    """
    return _Stages(parts, layout, mesh, cluster, passes, update, optimizer).price(cuts)


@dataclass(frozen=True)
class _StagePass:
    """A pass of a stage as data parallelism sees it: each part's forward and backward is one entry."""

    seconds: tuple[float, ...]
    buckets: tuple[Bucket, ...]


class _Stages:
    def __init__(
        self,
        parts: Sequence[Part],
        layout: NamedLayout,
        mesh: Mesh,
        cluster: Cluster,
        passes: int,
        update: float,
        optimizer: str,
    ) -> None:
        self.parts, self.layout, self.mesh, self.cluster = parts, layout, mesh, cluster
        self.passes, self.update, self.optimizer = passes, update, OptimizerCost.of(optimizer)
        count = layout.pp * layout.stages
        if len(parts) < count:
            raise UsageError(
                f"a model of {len(parts)} parts cannot be cut into {count} stages: give at most {len(parts)}"
            )
        self.owners = stage_ranks(layout.schedule, layout.pp, count)
        self.actions = pipeline_actions(layout.schedule, layout.pp, count, passes)
        self.flying = in_flight(self.actions, count)
        kinds = {part: number for number, part in reversed(list(enumerate(parts)))}
        self.kinds = [kinds[part] for part in parts]
        self.numel = sum(tensor.numel for tensor in self._tensors(range(len(parts))).values()) or 1
        self._times: dict[range, StageTime] = {}
        self._steps: dict[tuple[int, ...], tuple[float, SimulatedStep]] = {}

    def price(self, cuts: Sequence[int] | None) -> PipelinePrice:
        boundaries = tuple(cuts) if cuts is not None else self._best()
        runs = [range(*pair) for pair in pairwise(boundaries)]
        times = [self._time(run) for run in runs]
        tied = self._tied(runs)
        times = [
            StageTime(t.forward, t.input, t.weight, t.sends, t.returns, t.step + tied.get(s, 0.0))
            for s, t in enumerate(times)
        ]
        found = simulated(self.actions, self.owners, times)
        stages = tuple(
            self._stage(number, run, time) for number, (run, time) in enumerate(zip(runs, times, strict=True))
        )
        busiest = max(range(self.layout.pp), key=found.busy.__getitem__)
        own = [run for run, owner in zip(runs, self.owners, strict=True) if owner == busiest]
        inside = [self.parts[part] for run in own for part in run]
        optimizer = sum(self._update(run) for run in own)
        waiting = self.passes * sum(map(self._waiting, own))
        work = self.passes * sum(part.forward + part.backward for part in inside) + waiting
        return PipelinePrice(
            stages,
            found,
            self.passes * sum(part.moves for part in inside),
            self.passes * sum(part.again for part in inside),
            max(found.busy[busiest] - work - optimizer, 0.0),
            optimizer,
            waiting,
            tuple(self._traffic(runs, times)),
        )

    def _best(self) -> tuple[int, ...]:
        count = len(self.owners)

        def cost(stage: int, begin: int, end: int) -> StageTime:
            return self._time(range(begin, end))

        def judge(cuts: tuple[int, ...]) -> float:
            times = [self._time(range(*pair)) for pair in pairwise(cuts)]
            return simulated(self.actions, self.owners, times).seconds

        best = best_cuts(
            len(self.parts),
            count,
            cost,
            judge,
            self.passes,
            gap=0.01,
            ranks_of_stages=self.owners,
            actions=self.actions,
            most=100,
        )
        assert best is not None
        return best.cuts

    # -- a stage

    def _time(self, run: range) -> StageTime:
        if run not in self._times:
            self._times[run] = self._timed(run)
        return self._times[run]

    def _timed(self, run: range) -> StageTime:
        forward, *back = (sum(getattr(self.parts[p], n) for p in run) for n in ("forward", "input", "weight"))
        each, step = self._data_parallel(run)
        crossing = self._crossing(run.stop)
        sends = crossing and self.cluster.link(self.mesh, "pp").time("permute", crossing, self.layout.pp)
        work = forward + sum(back)
        slower = 1 + self._waiting(run) / work if work else 1.0
        back[1] += (each - work) / slower
        after = step + self._update(run)
        forward, first, second = (slower * seconds for seconds in (forward, *back))
        return StageTime(forward, first, second, sends, sends, after)

    def _waiting(self, run: range) -> float:
        """By how much the host needs longer to start a pass than it takes."""
        parts = [self.parts[part] for part in run]
        starting = sum(part.starting for part in parts)
        if not starting:
            return 0.0
        starting += self.cluster.device.host_seconds("eager", 0)
        return max(starting - sum(part.forward + part.backward for part in parts), 0.0)

    def _crossing(self, boundary: int) -> int:
        return self.parts[boundary - 1].sends if boundary < len(self.parts) else 0

    def _data_parallel(self, run: range) -> tuple[float, float]:
        """Seconds of a pass with what data parallelism adds to each, and of what follows once a step."""
        each, last = self._step(run)
        return each, max(last.seconds - 3 * each, 0.0)

    def _step(self, run: range) -> tuple[float, SimulatedStep]:
        key = tuple(self.kinds[part] for part in run)
        if key not in self._steps:
            three, four = (
                simulated_step(self._pass(run), self.layout, self.mesh, self.cluster, passes, {})
                for passes in (3, 4)
            )
            self._steps[key] = four.seconds - three.seconds, three
        return self._steps[key]

    def _pass(self, run: range) -> _StagePass:
        parts = [self.parts[part] for part in run]
        seconds = (*(part.forward for part in parts), *(part.backward for part in reversed(parts)))
        buckets, seen = [], set()
        for place, part in enumerate(parts):
            new = [(name, tensor) for name, tensor in part.parameters if name not in seen]
            seen |= {name for name, _ in new}
            if new:
                back = len(seconds) - 1 - place
                names, tensors = zip(*new, strict=True)
                buckets.append(Bucket(part.name, names, tensors, (place, place), (back, back), back))
        return _StagePass(seconds, tuple(buckets))

    def _tensors(self, run: range) -> dict[str, TensorInfo]:
        return {name: tensor for part in run for name, tensor in self.parts[part].parameters}

    def _update(self, run: range) -> float:
        share = sum(tensor.numel for tensor in self._tensors(run).values()) / self.numel
        return self.update * share / self.layout.shards

    def _tied(self, runs: Sequence[range]) -> dict[int, float]:
        """Seconds in which the gradients of parameters that several stages use are summed, by stage."""
        users: dict[str, list[int]] = defaultdict(list)
        for number, run in enumerate(runs):
            for name in self._tensors(run):
                users[name].append(number)
        found: dict[int, float] = defaultdict(float)
        for name, stages in users.items():
            if len({self.owners[stage] for stage in stages}) > 1:
                tensor = self._tensors(runs[stages[0]])[name]
                bucket = Bucket("", (name,), (tensor,), None, None, None)
                size = reduced_bytes(bucket, self.layout)
                link = self.cluster.link(self.mesh, "pp")
                seconds = link.time("all_reduce", size, 2, itemsize=size // max(tensor.numel, 1))
                for stage in stages:
                    found[stage] += seconds
        return found

    def _stage(self, number: int, run: range, time: StageTime) -> Stage:
        layout, parts = self.layout, [self.parts[part] for part in run]
        tensors = self._tensors(run).values()
        parameters = sum(tensor.bytes for tensor in tensors)
        states = sum(self.optimizer.state_bytes(tensor) for tensor in tensors)
        largest = sorted(sum(tensor.bytes for tensor in part.sizes) for part in parts)
        gradients = parameters
        if layout.reduce_dtype is not None:
            gradients = sum(tensor.numel for tensor in tensors) * layout.reduce_dtype.itemsize
        workspace = largest[-1] if layout.reduce_dtype is not None else 0
        if layout.zero == 3:
            workspace += sum(largest[-2:]) if layout.reshard else parameters
            if self.optimizer.master:
                master = sum(4 * t.numel for t in tensors if t.dtype.itemsize < 4)
                states, parameters = states - master, master or parameters
            parameters //= layout.shards
        if layout.zero >= 2:
            gradients //= layout.shards
        flying, before, most = self.flying[number], 0, 0
        for part in parts:
            most = max(most, before + part.most)
            before += part.kept
        return Stage(
            tuple(part.name for part in parts),
            self.owners[number],
            time,
            flying,
            parameters,
            gradients,
            states // layout.shards,
            (flying - 1) * before + most,
            workspace,
        )

    def _traffic(self, runs: Sequence[range], times: Sequence[StageTime]) -> Iterator[Traffic]:
        for number, (run, time) in enumerate(zip(runs[:-1], times[:-1], strict=True)):
            if self.owners[number] != self.owners[number + 1]:
                size, each = self._crossing(run.stop), self.passes
                yield Traffic(
                    "send to the next stage", "permute", "pp", self.layout.pp, size, each, each * time.sends
                )
                yield Traffic(
                    "return gradients", "permute", "pp", self.layout.pp, size, each, each * time.returns
                )
        for run in runs:
            whole = simulated_step(self._pass(run), self.layout, self.mesh, self.cluster, self.passes, {})
            yield from whole.traffic
