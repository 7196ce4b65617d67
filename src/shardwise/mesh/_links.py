"""`Link`: what a collective costs, by its group and its size.

A link states a law (latency of the hops and bytes over bandwidth) and, where somebody measured, curves. NCCL changes
its algorithm and protocol with the size of the message, so a curve has a few pieces, each with a latency and a
bandwidth of its own. Groups that were not measured lie between those that were, or follow them by the law.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from ..documents import Field
from ..errors import UsageError

Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

Topology = Literal["switch", "ring"]
Algorithm = Literal["ring", "tree"]


class Piece(NamedTuple):
    """Messages above so many bytes take latency + bytes / bandwidth; bandwidth None: as long for any size."""

    above: float
    latency: float
    bandwidth: float | None


@dataclass(frozen=True)
class Curve:
    """What a collective was measured to take among `ranks`, of which `members` share an island.

    A larger message never takes less: a piece begins with at least the time with which the one before it ends.
    Bandwidths are bytes of the whole buffer per second. Elements of one byte take `narrow` times as long per byte: they
    are added slowly, and never inside the switch.
    """

    collective: Collective
    ranks: int
    pieces: tuple[Piece, ...]
    members: int = 1
    narrow: float = 1.0

    def __post_init__(self) -> None:
        what = f"the measured {self.collective} among {self.ranks}"
        if self.collective not in COLLECTIVES:
            raise UsageError(f"unknown collective {self.collective!r}: use one of {', '.join(COLLECTIVES)}")
        if self.ranks < 2 or self.members < 1 or self.ranks % self.members or self.ranks == self.members:
            raise UsageError(
                f"{what} has {self.members} ranks in an island: give at least 2 ranks in at least 2 islands"
            )
        above = [piece.above for piece in self.pieces]
        if not above or above[0] != 0 or any(a >= b for a, b in pairwise(above)):
            raise UsageError(f"{what} must have pieces that begin at 0 bytes and at growing sizes")
        for piece in self.pieces:
            rate = piece.bandwidth
            if piece.latency < 0 or (rate is not None and not rate > 0) or not (piece.latency or rate):
                raise UsageError(f"{what} has a piece without a latency and a positive bandwidth")

    @property
    def islands(self) -> int:
        return self.ranks // self.members


@dataclass(frozen=True)
class Link:
    """A kind of connection.

    `bandwidth` is the rate at which one device can send, in bytes per second; `latency` the seconds of one hop and
    `launch` the seconds to start a collective. On a `switch` every pair is one hop apart; on a `ring` data for a
    distant device passes through the devices between. `all_reduce` is the algorithm of that collective: both move the
    same bytes, a tree in fewer hops. In a group that has several members in an island, the hops inside it take
    `latency_inside`. `at_scale` is the share of the bandwidth that is left among so many islands or more. `ramp` says
    that a small message does not have all of the latency: a share of it if there is nothing to send, all from so many
    bytes on.

    `measured` has curves of collectives, which are followed where there are any; `origin` says where all this is from.
    """

    bandwidth: float
    latency: float = 0.0
    launch: float = 0.0
    topology: Topology = "switch"
    all_reduce: Algorithm = "ring"
    latency_inside: float = 0.0
    at_scale: tuple[tuple[int, float], ...] = ()
    ramp: tuple[float, float] = (1.0, 1.0)
    measured: tuple[Curve, ...] = ()
    origin: str = ""

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise UsageError(
                f"a link has bandwidth {self.bandwidth}: it must be positive, in bytes per second"
            )
        if min(self.latency, self.launch, self.latency_inside) < 0:
            raise UsageError("a link has a negative latency: give seconds, 0 or more")
        if self.topology not in get_args(Topology):
            raise UsageError(
                f"unknown topology {self.topology!r}: use one of {', '.join(get_args(Topology))}"
            )
        if self.all_reduce not in get_args(Algorithm):
            raise UsageError(
                f"unknown algorithm {self.all_reduce!r}: use one of {', '.join(get_args(Algorithm))}"
            )
        if any(a >= b for (a, _), (b, _) in pairwise(self.at_scale)):
            raise UsageError("at_scale of a link must state growing numbers of islands")
        groups = [(curve.collective, curve.ranks, curve.members) for curve in self.measured]
        if len(set(groups)) < len(groups):
            twice = next(group for group in groups if groups.count(group) > 1)
            raise UsageError(f"a link has two measured curves of {twice[0]} among {twice[1]}: give one")

    def __hash__(self) -> int:
        return hash((self.bandwidth, self.latency, self.launch, self.topology, len(self.measured)))

    def time(self, collective: Collective, size: float, ranks: int, *, itemsize: int = 2) -> float:
        """Seconds of one collective among `ranks` devices.

        `size` is the bytes of the larger side on one device: the output of an all-gather, the input of the others.

        >>> link = Link(bandwidth=1e9)
        >>> link.time("all_gather", 8e9, 4), link.time("all_reduce", 8e9, 4), link.time("all_reduce", 8e9, 1)
        (6.0, 12.0, 0.0)
        """
        return float(self.times(collective, np.array(float(size)), ranks, itemsize=itemsize))

    def times(
        self,
        collective: Collective,
        sizes: np.ndarray,
        ranks: int,
        *,
        itemsize: int = 2,
        members: int = 1,
        inside: "Link | None" = None,
    ) -> np.ndarray:
        """Seconds for several sizes; the group may have several members in each island, joined by the link inside."""
        parts = self._parts(collective, ranks, members, inside, itemsize == 1)
        if len(parts) == 1:
            return parts[0][1](sizes)
        logs = [weight * np.log(np.maximum(curve(sizes), 1e-12)) for weight, curve in parts]
        return np.exp(sum(logs))

    def terms(self, collective: Collective, ranks: int) -> tuple[float, float]:
        """The law: latency in seconds, and seconds per byte."""
        return self._law(collective, ranks, 1, None)

    @cache  # noqa: B019  (links are few and live as long as the process)
    def _parts(
        self, collective: Collective, ranks: int, members: int, inside: "Link | None", narrow: bool
    ) -> list[tuple[float, "_Steps"]]:
        """Weights and curves whose weighted geometric mean is the time of a group."""
        if ranks == 1:
            return [(1.0, _Steps([(0.0, 0.0, 0.0)]))]
        law = self._law(collective, ranks, members, inside)
        islands = -(-ranks // members)
        curves = self._like(collective, members)
        if not curves:
            return [(1.0, _Steps([(0.0, *law)], self.ramp))]
        lower = [curve for curve in curves if curve.islands <= islands]
        upper = [curve for curve in curves if curve.islands >= islands]
        if not lower or not upper:  # beyond what was measured: as the law changes from there
            near = (lower or upper)[-1 if lower else 0]
            return [(1.0, self._changed(near, law, inside, narrow))]
        low, high = lower[-1], upper[0]
        ends = [
            self._changed(c, self._law(collective, c.islands * members, members, inside), inside, narrow)
            for c in (low, high)
        ]
        if low is high:
            return [(1.0, ends[0])]
        weight = math.log(islands / low.islands) / math.log(high.islands / low.islands)
        return [(1 - weight, ends[0]), (weight, ends[1])]

    def _like(self, collective: Collective, members: int) -> list[Curve]:
        """The curves of a collective whose members in an island are closest to the number, by growing islands."""
        curves = [curve for curve in self.measured if curve.collective == collective]
        if not curves:
            return []
        nearest = min({c.members for c in curves}, key=lambda m: (abs(math.log(m / members)), m))
        return sorted((c for c in curves if c.members == nearest), key=lambda c: c.islands)

    def _changed(
        self, curve: Curve, law: tuple[float, float], inside: "Link | None", narrow: bool
    ) -> "_Steps":
        """A measured curve, changed as the law changes from its group to another."""
        latency, per_byte = self._law(curve.collective, curve.ranks, curve.members, inside)
        hops = law[0] / latency if latency else 1.0
        bytes_ = law[1] / per_byte * (curve.narrow if narrow else 1.0)
        pieces = (
            (piece.above, piece.latency * hops, bytes_ / piece.bandwidth if piece.bandwidth else 0.0)
            for piece in curve.pieces
        )
        return _Steps(pieces, self.ramp)

    def _law(
        self, collective: Collective, ranks: int, members: int, inside: "Link | None"
    ) -> tuple[float, float]:
        if collective not in COLLECTIVES:
            raise UsageError(f"unknown collective {collective!r}: use one of {', '.join(COLLECTIVES)}")
        if ranks == 1:
            return 0.0, 0.0
        islands = -(-ranks // members)
        lane = self.bandwidth * self._left(islands)
        together, share = self.together(members, inside) * self._left(islands), (ranks - 1) / ranks
        hops = (islands - 1) * self.latency + (ranks - islands) * self.latency_inside
        per_byte = share / together
        if collective == "all_reduce":
            hops, per_byte = 2 * hops, 2 * per_byte
            if self.all_reduce == "tree":
                hops = 2 * math.log2(islands) * self.latency + 2 * (members - 1) * self.latency_inside
        elif collective == "all_to_all":
            # Each device sends to other islands over its own link alone, directly.
            hops = (islands - 1) * self.latency
            per_byte = (ranks - members) / ranks / lane
            if self.topology == "ring":
                per_byte = (ranks * ranks // 4) / ranks / lane  # mean distance times the bytes that travel it
            elif inside is not None:
                per_byte = max(per_byte, share / inside.bandwidth)
        elif collective == "permute":
            hops, per_byte = self.latency, 1 / lane
            if self.topology == "ring":
                hops, per_byte = ranks // 2 * self.latency, max(1.0, ranks / 4) / lane
        return self.launch + hops, per_byte

    def together(self, members: int, inside: "Link | None") -> float:
        """The bandwidth of a ring through islands with so many members: over all their links at once, and never more
        than the link inside."""
        rate = self.bandwidth * members
        return rate if inside is None else min(rate, inside.bandwidth)

    def _left(self, islands: int) -> float:
        """The share of the bandwidth among so many islands; between stated numbers, by their logarithm."""
        if not self.at_scale:
            return 1.0
        known = np.log([count for count, _ in self.at_scale])
        return float(np.interp(math.log(islands), known, [share for _, share in self.at_scale]))


@dataclass(frozen=True)
class Span:
    """The links of a group that crosses islands and has several members in each."""

    outer: Link
    inner: Link
    members: int

    @property
    def bandwidth(self) -> float:
        """Of a ring through all members."""
        return self.outer.together(self.members, self.inner)

    @property
    def all_reduce(self) -> Algorithm:
        return self.outer.all_reduce

    def time(self, collective: Collective, size: float, ranks: int, *, itemsize: int = 2) -> float:
        """As `Link.time`."""
        return float(self.times(collective, np.array(float(size)), ranks, itemsize=itemsize))

    def times(
        self, collective: Collective, sizes: np.ndarray, ranks: int, *, itemsize: int = 2
    ) -> np.ndarray:
        """As `Link.times`."""
        return self.outer.times(
            collective, sizes, ranks, itemsize=itemsize, members=self.members, inside=self.inner
        )


class _Steps:
    """A time over sizes in pieces: above each size, latency + seconds per byte * size, and never less than before. Of
    the latency, a `ramp` of sizes begins with a share."""

    def __init__(
        self, pieces: Iterable[tuple[float, float, float]], ramp: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        self.share, self.whole = ramp
        above, latency, per_byte = zip(*pieces, strict=True)
        self.above = np.array(above[1:])
        self.latency, self.per_byte = np.array(latency), np.array(per_byte)
        ends = self.latency[:-1] + self.per_byte[:-1] * self.above
        self.least = np.maximum.accumulate(np.concatenate([[0.0], ends]))

    def __call__(self, sizes: np.ndarray) -> np.ndarray:
        left = self.share + (1 - self.share) * np.minimum(sizes / self.whole, 1.0)
        if not len(self.above):
            return self.latency[0] * left + self.per_byte[0] * sizes
        which = np.searchsorted(self.above, sizes, side="left")
        return np.maximum(self.latency[which] * left + self.per_byte[which] * sizes, self.least[which])


# What a number of a document may be: rates in something per second (and bytes of memory), and fixed times. Wider
# limits would let prices overflow.
RATES = (1e3, 1e21)
SECONDS = (0.0, 60.0)


def read_link(document: Field) -> Link:
    """The link in a field of a document."""
    numbers = ("latency", "launch", "latency_inside")
    words = ("topology", "all_reduce", "at_scale", "ramp", "measured", "origin")
    fields = document.object(("bandwidth",), (*numbers, *words))
    given: dict[str, Any] = {name: fields[name].number(*SECONDS) for name in numbers if name in fields}
    if "topology" in fields:
        given["topology"] = fields["topology"].one_of(get_args(Topology))
    if "all_reduce" in fields:
        given["all_reduce"] = fields["all_reduce"].one_of(get_args(Algorithm))
    if "at_scale" in fields:
        given["at_scale"] = tuple(map(_at_scale, fields["at_scale"].items()))
    if "ramp" in fields:
        share, whole = fields["ramp"].items(2)
        given["ramp"] = share.number(0.0, 1.0), whole.number(1, 1e21)
    if "measured" in fields:
        given["measured"] = tuple(map(_curve, fields["measured"].items()))
    if "origin" in fields:
        given["origin"] = fields["origin"].text()
    with document.checked():
        return Link(fields["bandwidth"].number(*RATES), **given)


def _at_scale(document: Field) -> tuple[int, float]:
    islands, share = document.items(2)
    return islands.integer(1, 10**9), share.number(1e-3, 1.0)


def _curve(document: Field) -> Curve:
    fields = document.object(("collective", "ranks", "pieces"), ("members", "narrow"))
    pieces = []
    for piece in fields["pieces"].items():
        above, latency, bandwidth = piece.items(3)
        rate = bandwidth.optional(lambda one: one.number(*RATES))
        pieces.append(Piece(above.number(0, 1e21), latency.number(*SECONDS), rate))
    given: dict[str, Any] = {}
    if "members" in fields:
        given["members"] = fields["members"].integer(1, 10**9)
    if "narrow" in fields:
        given["narrow"] = fields["narrow"].number(0.1, 100)
    collective: Any = fields["collective"].one_of(COLLECTIVES)
    with document.checked():
        return Curve(collective, fields["ranks"].integer(2, 10**9), tuple(pieces), **given)


def with_curves(link: Link, curves: Sequence[Curve]) -> Link:
    """The link with these curves in the place of those of the same groups."""
    new = {(curve.collective, curve.ranks, curve.members): curve for curve in curves}
    kept = (c for c in link.measured if (c.collective, c.ranks, c.members) not in new)
    return replace(link, measured=(*kept, *new.values()))
