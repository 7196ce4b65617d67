"""Which rank sends what to whom when a sharded tensor goes from one mesh to another.

Both layouts say which positions of each dim a rank holds, so what one rank has and another needs is the intersection,
dim by dim. Ranks that hold the same positions share the sending; data that a rank already holds is not sent. So the
number of bytes sent is minimal: those that each rank needs and does not have.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from ..layout import Layout, Run, between, common, length

Box = tuple[tuple[Run, ...], ...]  # for each dim the positions, as ascending ranges

# Fewer elements than this are not worth splitting between senders.
_WORTH_SHARING = 1024


@dataclass(frozen=True)
class Parcel:
    """Part of the tensor that `sender` has and `receiver` needs: global ranks, and positions in the whole tensor."""

    sender: int
    receiver: int
    box: Box

    @property
    def numel(self) -> int:
        return math.prod(length(runs) for runs in self.box)


def parcels(
    shape: Sequence[int],
    source: Layout,
    source_ranks: Sequence[int],
    target: Layout,
    target_ranks: Sequence[int],
    limit: int | None = None,
) -> list[Parcel]:
    """All parcels, those from a rank to itself included, in an order that all ranks agree on.

    `source_ranks` and `target_ranks` are the global ranks of the two meshes, row by row. No parcel has more than
    `limit` elements.
    """
    holders: dict[Box, list[int]] = defaultdict(list)
    for place, rank in enumerate(source_ranks):
        holders[held(source, shape, place)].append(rank)
    found: list[Parcel] = []
    for place, receiver in enumerate(target_ranks):
        needed = held(target, shape, place)
        for box, ranks in holders.items():
            part = tuple(_both(ours, theirs) for ours, theirs in zip(needed, box, strict=True))
            if all(part) or not shape:
                found += _shared(part, ranks, receiver, place)
    return [part for parcel in found for part in _within(parcel, limit)]


def held(layout: Layout, shape: Sequence[int], place: int) -> Box:
    """The positions that the rank at a place of the mesh holds."""
    return tuple(tuple(layout.runs(dim, size, place)) for dim, size in enumerate(shape))


def _both(some: Sequence[Run], others: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(sorted(common(some, others)))


def _shared(box: Box, ranks: Sequence[int], receiver: int, place: int) -> Iterator[Parcel]:
    """The box from its holders: from the receiver itself if it is one, else a part from each."""
    if receiver in ranks:
        yield Parcel(receiver, receiver, box)
        return
    first = place % len(ranks)
    turn = [*ranks[first:], *ranks[:first]]
    numel = math.prod(length(runs) for runs in box)
    if numel < _WORTH_SHARING * len(turn) or not box:
        yield Parcel(turn[0], receiver, box)
        return
    for sender, part in zip(turn, _cut(box, len(turn)), strict=False):
        yield Parcel(sender, receiver, part)


def _within(parcel: Parcel, limit: int | None) -> Iterator[Parcel]:
    if limit is None or parcel.numel <= limit or parcel.sender == parcel.receiver:
        yield parcel
        return
    longest = max(length(runs) for runs in parcel.box)
    pieces = min(longest, -(-parcel.numel // limit))
    for box in _cut(parcel.box, pieces):
        part = Parcel(parcel.sender, parcel.receiver, box)
        yield from _within(part, limit) if part.numel < parcel.numel else [part]


def _cut(box: Box, pieces: int) -> Iterator[Box]:
    """The box in about equal pieces along its longest dim; none of them empty."""
    dim = max(range(len(box)), key=lambda d: length(box[d]))
    size = length(box[dim])
    chunk = -(-size // pieces)
    for start in range(0, size, chunk):
        yield (*box[:dim], tuple(between(box[dim], start, start + chunk)), *box[dim + 1 :])


def views(piece: Tensor, holds: Box, box: Box) -> Iterator[tuple[Tensor, tuple[slice, ...]]]:
    """The box as views of the piece that holds it, each with where it lies in the box."""
    by_dim = [list(_where(ours, wanted)) for ours, wanted in zip(holds, box, strict=True)]
    for ranges in product(*by_dim):
        view = piece
        for dim, (start, stop, _) in enumerate(ranges):
            view = view.narrow(dim, start, stop - start)
        yield view, tuple(slice(into, into + stop - start) for start, stop, into in ranges)


def _where(holds: Sequence[Run], wanted: Sequence[Run]) -> Iterator[tuple[int, int, int]]:
    """Start and stop in the piece, and the place in the box, of each range of the wanted positions."""
    before = 0
    for start, stop in wanted:
        passed = 0
        for first, last in holds:
            low, high = max(start, first), min(stop, last)
            if low < high:
                yield low - first + passed, high - first + passed, before + low - start
            passed += last - first
        before += stop - start
