"""The communicating forms `ring` and `balanced` of attention: queries, keys and values sharded along the sequence.

Keys and values go round from rank to rank, and every rank attends to what it has while the next arrives. In backward
their gradients go round behind them. Where attention is causal the last rank has most to do; the form `balanced` gives
each rank one half of its queries from the beginning of the sequence and one from its end before the ring, and gives
the results back after it.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from ..calls import Call
from ._attention import mask_at, positions
from ._blocks import Attended, Range, Sequences, as_given, gradients, sum_dtype
from ._group import Group, Request, Run
from ._operator import Operator

_OF_QUERIES = ("grad", "query", "output", "logsumexp")
_OF_KEYS = ("key", "value")

# The ranges of positions that each rank works on.
Ranges = Sequence[tuple[Range, ...]]


def _ring(call: Call, group: Group) -> Run:
    own = call["query"]
    queries = Sequences((positions(group.own, "query"),), (own,))
    return (yield from _forward(call, group, queries, _ranges(group, "key"), _keys(call)))


def _ring_backward(call: Call, group: Group) -> Run:
    given = tuple(call[name] for name in _OF_QUERIES)
    queries = Sequences((positions(group.own, "query"),), given)
    grads = yield from _backward(call, group, queries, _ranges(group, "key"), _keys(call))
    return as_given(call, grads)


def _balanced(call: Call, group: Group) -> Run:
    moves = _Halves(group)
    query, key, value = yield from moves.there([call[n] for n in ("query", *_OF_KEYS)])
    queries = Sequences(moves.after[group.rank], (query,))
    made = yield from _forward(call, group, queries, moves.after, (key, value))
    return tuple((yield from moves.back(list(made))))


def _balanced_backward(call: Call, group: Group) -> Run:
    moves = _Halves(group)
    *given, key, value = yield from moves.there([call[n] for n in (*_OF_QUERIES, *_OF_KEYS)])
    queries = Sequences(moves.after[group.rank], tuple(given))
    grads = yield from _backward(call, group, queries, moves.after, (key, value))
    narrow = [grad.to(call["query"].dtype) for grad in grads]
    return as_given(call, (yield from moves.back(narrow)))


def _keys(call: Call) -> tuple[Tensor, ...]:
    return tuple(call[name] for name in _OF_KEYS)


def _ranges(group: Group, name: str) -> Ranges:
    return [(positions(held, name),) for held in group.held]


def _forward(call: Call, group: Group, queries: Sequences, ranges: Ranges, own: tuple[Tensor, ...]) -> Run:
    attended = Attended(call, queries, mask_at(group.own))
    going = _Packed(own, ranges)
    flat = going.packed(own)
    for step in range(group.size):
        source = (group.rank - step) % group.size
        onward = None
        if step + 1 < group.size:
            onward = group.permute(flat, shape=(going.length(source - 1),))
        attended.add(Sequences(ranges[source], going.unpacked(flat, source)))
        if onward is not None:
            flat = yield onward
    return attended.results()


def _backward(call: Call, group: Group, queries: Sequences, ranges: Ranges, own: tuple[Tensor, ...]) -> Run:
    """Keys and values are attended to by one rank after another; the next one waits for the sum of their gradients,
    which the last one sends to the rank that holds them."""
    going = _Packed(own, ranges)
    flat = going.packed(own)
    dtype = sum_dtype(own[0])
    behind: Request | None = None
    grad_query: Tensor | None = None
    for step in range(group.size):
        source = (group.rank - step) % group.size
        onward = None
        if step + 1 < group.size:
            onward = group.permute(flat, shape=(going.length(source - 1),))
        keys = Sequences(ranges[source], going.unpacked(flat, source))
        of_query, *grads = gradients(call, queries, keys, mask_at(group.own))
        of_query = of_query.to(dtype)
        grad_query = of_query if grad_query is None else grad_query + of_query
        total = going.packed(grads).to(dtype)
        if behind is not None:
            total = total + (yield behind)
        behind = group.permute(total, shape=(going.length(source - 1),))
        if onward is not None:
            flat = yield onward
    assert behind is not None
    total = yield behind
    return grad_query, *going.unpacked(total, group.rank)


class _Packed:
    """Keys and values as one flat tensor, so that they move together."""

    def __init__(self, like: Sequence[Tensor], ranges: Ranges) -> None:
        self.shapes = [[(*t.shape[:2], _length(each), t.shape[3]) for t in like] for each in ranges]

    def length(self, rank: int) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes[rank])

    def packed(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def unpacked(self, flat: Tensor, rank: int) -> tuple[Tensor, ...]:
        shapes = self.shapes[rank]
        parts = flat.split([torch.Size(shape).numel() for shape in shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))


class _Halves:
    """Halves of ranks' pieces of a sequence, exchanged so that each rank has one near the beginning and one near the
    end: of 2n halves the first rank takes the first and the last, the second the second and the last but one."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.before = _ranges(group, "query")
        begin, end = self.before[0][0][0], max(stop for ((_, stop),) in self.before)
        parts = 2 * group.size
        sizes = [(end - begin + number) // parts for number in reversed(range(parts))]
        edges = [begin, *(begin + passed for passed in accumulate(sizes))]
        halves: list[Range] = list(pairwise(edges))
        self.after: Ranges = [(halves[rank], halves[parts - 1 - rank]) for rank in range(group.size)]

    def there(self, tensors: list[Tensor]) -> Any:
        return (yield from self._exchanged(tensors, self.before, self.after))

    def back(self, tensors: list[Tensor]) -> Any:
        return (yield from self._exchanged(tensors, self.after, self.before))

    def _exchanged(self, tensors: list[Tensor], before: Ranges, after: Ranges) -> Any:
        """The tensors at the positions that this rank has afterwards, in their order."""
        rank, moved = self.group.rank, []
        got = [_common(theirs, after[rank]) for theirs in before]
        where = [one for each in got for one in each]
        order = sorted(range(len(where)), key=where.__getitem__)
        for tensor in tensors:
            held = Sequences(tuple(before[rank]), (tensor,))
            parts = [
                _joined([held.at(one) for one in _common(before[rank], wanted)], tensor) for wanted in after
            ]
            shapes = [(*tensor.shape[:2], _length(each), *tensor.shape[3:]) for each in got]
            arrived = yield self.group.all_to_all(parts, shapes)
            pieces = [
                piece
                for each, part in zip(got, arrived, strict=True)
                for piece in (part.split([stop - start for start, stop in each], 2) if each else ())
            ]
            moved.append(_joined([pieces[place] for place in order], tensor))
        return moved


def _common(some: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """The ranges of positions that are in both, in order."""
    found = [(max(a, c), min(b, d)) for a, b in some for c, d in others]
    return sorted((start, stop) for start, stop in found if start < stop)


def _length(ranges: Sequence[Range]) -> int:
    return sum(stop - start for start, stop in ranges)


def _joined(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat(list(parts), 2) if parts else like.narrow(2, 0, 0)


# The keys that reach a rank are those of its ring: which of them another axis leaves there, a mask that this axis cuts
# into ranges does not follow.
_MASKED = ((("key", 2), ("mask", -1)),)

RING: dict[str, Operator] = {
    "shardwise.attention": Operator(in_group=_ring, leads=_MASKED, less_nan=True),
    "shardwise.attention_backward": Operator(in_group=_ring_backward, leads=_MASKED, less_nan=True),
}
BALANCED: dict[str, Operator] = {
    "shardwise.attention": Operator(in_group=_balanced, less_nan=True),
    "shardwise.attention_backward": Operator(in_group=_balanced_backward, less_nan=True),
}
