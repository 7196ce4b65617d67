"""Data parallelism around the passes of a rank: when parameters are gathered and gradients reduced, and what it costs.

A step is simulated as torch's FSDP and DDP run it. The pass is one stream; each axis of data parallelism is another, on
which collectives run one after another. The parameters of a bucket are gathered while the bucket before it runs, so
those of two are there at a time; gradients are reduced as soon as those of a bucket are there. What the pass waits for
is exposed. What is hidden slows the kernels beside it down.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..mesh import Cluster, Collective, Mesh
from ._named import NamedLayout
from ._pass import Bucket, Pass
from ._prices import SLOWDOWN

# The most bytes of gradients that torch's DDP reduces together, by default.
DDP_BUCKET = 25 * 2**20


@dataclass(frozen=True)
class Traffic:
    """Collectives of one purpose and size: how many a step, among how many ranks, and the seconds of all together."""

    purpose: str
    collective: Collective
    axis: str
    ranks: int
    size: int
    count: int
    seconds: float


@dataclass(frozen=True)
class SimulatedStep:
    """Seconds of a step: of the passes themselves, of copies for collectives, of collectives that are waited for, and
    by which kernels are slower because of those that are not."""

    passes: float
    copies: float
    exposed: float
    slowdown: float
    traffic: tuple[Traffic, ...]

    @property
    def seconds(self) -> float:
        return self.passes + self.copies + self.exposed + self.slowdown


class Buckets(Protocol):
    """What data parallelism needs of a pass: seconds of its entries, and its buckets."""

    @property
    def seconds(self) -> Sequence[float]: ...

    @property
    def buckets(self) -> Sequence[Bucket]: ...


def simulated_step(
    of: Buckets, layout: NamedLayout, mesh: Mesh, cluster: Cluster, passes: int, again: dict[int, float]
) -> SimulatedStep:
    """A step of so many passes. `again` are the seconds that recomputing adds before entries."""
    return _Simulation(of, layout, mesh, cluster, again).step(passes)


class _Simulation:
    def __init__(
        self, of: Buckets, layout: NamedLayout, mesh: Mesh, cluster: Cluster, again: dict[int, float]
    ) -> None:
        self.of, self.layout, self.mesh, self.cluster = of, layout, mesh, cluster
        self.again = again
        self.rate = cluster.device.memory_bandwidth * cluster.device.share("memory")
        self.gathers = gathers(of, layout)
        self.ready: dict[int, list[Bucket]] = {}
        for bucket in of.buckets:
            if bucket.ready is not None:
                self.ready.setdefault(bucket.ready, []).append(bucket)
        self.clock = self.worked = self.copied = 0.0
        self.free: Counter[str] = Counter()  # when each axis is free
        self.sent: Counter[tuple[str, Collective, str, int]] = Counter()
        self.took: Counter[tuple[str, Collective, str, int]] = Counter()

    def step(self, passes: int) -> SimulatedStep:
        """Passes between the first and the last are alike: one of them is simulated, and counts for all."""
        states = []
        for number in range(min(passes, 3)):
            before = self._state()
            self._run(last=number == min(passes, 3) - 1)
            states.append((before, self._state()))
        self._wait_for_all()
        if passes > 3:
            self._repeat(*states[1], passes - 3)
        self._gather_updated()
        busy = sum(self.took.values())
        exposed = self.clock - self.worked - self.copied
        hidden = max(busy - exposed, 0.0)
        traffic = tuple(
            Traffic(*key[:3], self.mesh[key[2]], key[3], self.sent[key], self.took[key]) for key in self.sent
        )
        return SimulatedStep(self.worked, self.copied, exposed, SLOWDOWN * hidden, traffic)

    def _state(self) -> tuple[float, float, float, Counter, Counter]:
        return self.clock, self.worked, self.copied, self.sent.copy(), self.took.copy()

    def _repeat(self, before: tuple, after: tuple, times: int) -> None:
        """Count what happened between two states so many times more."""
        self.clock += times * (after[0] - before[0])
        self.worked += times * (after[1] - before[1])
        self.copied += times * (after[2] - before[2])
        for total, old, new in ((self.sent, before[3], after[3]), (self.took, before[4], after[4])):
            for key in new:
                total[key] += times * (new[key] - old[key])

    def _run(self, last: bool) -> None:
        """One pass."""
        begun = {gather.first: number for number, gather in enumerate(self.gathers)}
        arrived: list[float] = []
        if self.gathers:
            arrived.append(self._gather(self.gathers[0].bucket))
        for place, seconds in enumerate(self.of.seconds):
            if place in begun:
                number = begun[place]
                self.clock = max(self.clock, arrived[number])
                self._copy(2 * self.gathers[number].bucket.bytes)
                if number + 1 < len(self.gathers):
                    arrived.append(self._gather(self.gathers[number + 1].bucket))
            self._work(seconds + self.again.get(place, 0.0))
            for bucket in self.ready.get(place, ()):
                self._reduce(bucket, last)

    def _work(self, seconds: float) -> None:
        self.clock += seconds
        self.worked += seconds

    def _copy(self, moved: float) -> None:
        self.clock += moved / self.rate
        self.copied += moved / self.rate

    def _gather(self, bucket: Bucket) -> float:
        axis = self.layout.sharding_axis
        assert axis is not None
        return self._send("gather parameters", "all_gather", axis, bucket.bytes, bucket.itemsize, self.clock)

    def _reduce(self, bucket: Bucket, last: bool) -> None:
        """Each pass where gradients are sharded; otherwise they are accumulated, and reduced after the last."""
        own, reduced = bucket.bytes, reduced_bytes(bucket, self.layout)
        if self.layout.zero < 2 and self.layout.dp * self.layout.fsdp > 1 and (reduced != own or not last):
            self._copy(own + 2 * reduced)
        if self.layout.zero < 2 and not last:
            return
        width = bucket.itemsize if self.layout.reduce is None else reduced // max(bucket.numel, 1)
        times = -(-own // DDP_BUCKET) if self.layout.zero < 2 else 1
        for _ in range(times):
            at, part = self.clock, reduced // times
            if (axis := self.layout.sharding_axis) is not None:
                at = self._send("reduce gradients", "reduce_scatter", axis, part, width, at)
            if (axis := self.layout.summing_axis) is not None:
                part //= self.layout.shards
                self._send("sum gradients of replicas", "all_reduce", axis, part, width, at)

    def _gather_updated(self) -> None:
        """Parameters that every rank holds are updated by one each, and then exchanged."""
        axis = self.layout.sharding_axis
        if axis is not None and self.layout.zero < 3:
            for bucket in self.of.buckets:
                self._send(
                    "gather updated parameters",
                    "all_gather",
                    axis,
                    bucket.bytes,
                    bucket.itemsize,
                    self.clock,
                )
            self._wait_for_all()

    def _wait_for_all(self) -> None:
        self.clock = max([self.clock, *self.free.values()])

    def _send(
        self, purpose: str, kind: Collective, axis: str, size: int, itemsize: int, earliest: float
    ) -> float:
        """When a collective ends that may begin at a time, once its axis is free."""
        seconds = self.cluster.link(self.mesh, axis).time(kind, size, self.mesh[axis], itemsize=itemsize)
        end = max(earliest, self.free[axis]) + seconds
        self.free[axis] = end  # type: ignore[assignment]
        self.sent[purpose, kind, axis, size] += 1
        self.took[purpose, kind, axis, size] += seconds  # type: ignore[assignment]
        return end


@dataclass(frozen=True)
class Gather:
    """A bucket that is gathered for entries `first` to `last`."""

    bucket: Bucket
    first: int
    last: int


def gathers(of: Buckets, layout: NamedLayout) -> list[Gather]:
    """The gathers of a pass in order: of each bucket for forward, and again for backward unless it is still there."""
    if layout.zero < 3 or layout.shards == 1:
        return []
    ends = [bucket.forward[1] for bucket in of.buckets if bucket.forward is not None]
    found = []
    for bucket in of.buckets:
        forward, backward = bucket.forward, bucket.backward
        stays = not layout.reshard or (forward is not None and forward[1] == max(ends))
        if forward is not None and backward is not None and stays:
            found.append(Gather(bucket, forward[0], backward[1]))
        else:
            found += [Gather(bucket, *span) for span in (forward, backward) if span is not None]
    return sorted(found, key=lambda gather: gather.first)


def reduced_bytes(bucket: Bucket, layout: NamedLayout) -> int:
    """Bytes of a bucket's gradients in the dtype in which they are reduced."""
    if layout.reduce_dtype is None:
        return bucket.bytes
    return bucket.numel * layout.reduce_dtype.itemsize


def kept_gradients(of: Pass, layout: NamedLayout) -> Iterator[tuple[int, int]]:
    """From which entry on gradients are kept, and their bytes as they are kept."""
    for bucket in of.buckets:
        if bucket.ready is None:
            continue
        if on_the_way(layout):
            yield bucket.ready, reduced_bytes(bucket, layout) // (layout.shards if layout.zero >= 2 else 1)
        else:
            yield from _gradients(of, bucket)


def on_the_way(layout: NamedLayout) -> bool:
    """Whether gradients are kept otherwise than backward computes them: sharded, or in another dtype."""
    return (layout.zero >= 2 and layout.shards > 1) or layout.reduce is not None


def transient(of: Pass, layout: NamedLayout) -> Iterator[tuple[int, int, int]]:
    """Bytes that are held from one entry to another (inclusive) for the sake of collectives: gathered parameters, and
    gradients on their way to what is kept of them."""
    order = gathers(of, layout)
    for number, gather in enumerate(order):
        yield order[number - 1].first if number else 0, gather.last, gather.bucket.bytes
    if not on_the_way(layout):
        return
    ready = [(b.ready, b) for b in of.buckets if b.ready is not None]
    ready.sort(key=lambda pair: pair[0])
    sharded = layout.zero >= 2 and layout.shards > 1
    for number, (end, bucket) in enumerate(ready):
        until = ready[min(number + 1, len(ready) - 1)][0] if sharded else end
        for made, size in _gradients(of, bucket):
            yield made, until, size
        if sharded and layout.reduce is not None:
            yield end, until, reduced_bytes(bucket, layout)


def _gradients(of: Pass, bucket: Bucket) -> Iterator[tuple[int, int]]:
    """The entries that make a bucket's gradients, and their bytes."""
    for owner in {of.owners[of.gradients[name]] for name in bucket.parameters if name in of.gradients}:
        if owner in of.made_at:
            yield of.made_at[owner], of.bytes_of(owner)
