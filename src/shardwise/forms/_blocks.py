"""Attention of some queries to some keys, by blocks: the exact sum of what the operator gives for each block.

A rank that holds some positions of the queries and some of the keys computes the pairs of them that attend: where it is
causal, a block of keys that lies before the queries is attended to whole, one at the same positions is causal, and the
rest is left out. The results of blocks with different keys are merged by the logarithms of their denominators.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..calls import Call

# Positions of a sequence from the first to before the last.
Range = tuple[int, int]


def blocks(queries: Range, keys: Range, causal: bool) -> Iterator[tuple[Range, Range, bool]]:
    """The pairs of a range of queries and one of keys that attend, as blocks that are whole or causal and square."""
    (start, stop), (first, last) = queries, keys
    if not causal:
        if start < stop and first < last:
            yield queries, keys, False
        return
    before = min(last, start)
    if first < before and start < stop:
        yield queries, (first, before), False
    first, end = max(first, start), min(last, stop)
    if first < end:
        yield (first, end), (first, end), True
        if end < stop:
            yield (end, stop), (first, end), False


@dataclass(frozen=True)
class Sequences:
    """Tensors whose dim `dim` holds these ranges of positions one after another."""

    ranges: tuple[Range, ...]
    tensors: tuple[Tensor, ...]
    dim: int = 2

    def cut(self, wanted: Range) -> tuple[Tensor, ...]:
        """The part at these positions, which lie in one of the ranges."""
        begin = self.place(wanted)
        if wanted[1] - wanted[0] == sum(b - a for a, b in self.ranges):
            return self.tensors
        return tuple(t.narrow(self.dim, begin, wanted[1] - wanted[0]) for t in self.tensors)

    def place(self, wanted: Range) -> int:
        """Where positions lie in the tensors."""
        passed = 0
        for start, stop in self.ranges:
            if start <= wanted[0] and wanted[1] <= stop:
                return passed + wanted[0] - start
            passed += stop - start
        raise AssertionError(f"{wanted} is not in {self.ranges}")


def pairs(queries: Sequences, keys: Sequences, causal: bool) -> Iterator[tuple[Range, Range, bool]]:
    """The blocks of all ranges of queries and keys."""
    for some in queries.ranges:
        for others in keys.ranges:
            yield from blocks(some, others, causal)


class Attended:
    """The output of attention and the logarithm of its denominator, for keys that come in turns."""

    def __init__(self, call: Call, queries: Sequences) -> None:
        (query,) = queries.tensors
        self.call, self.queries = call, queries
        rows, size = query.shape[:3], call["value"].shape[3]
        self.dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        self.output = query.new_zeros((*rows, size), dtype=self.dtype)
        self.logsumexp = query.new_full(rows, -torch.inf, dtype=self.dtype)
        self.begun = False

    def add(self, keys: Sequences) -> None:
        """Attend to keys and values."""
        for some, others, causal in pairs(self.queries, keys, self.call["causal"]):
            (query,), (key, value) = self.queries.cut(some), keys.cut(others)
            mask = _mask(self.call, self.queries, some, others)
            output, logsumexp = self.call(query=query, key=key, value=value, mask=mask, causal=causal)
            self._merge(self.queries.place(some), output.to(self.dtype), logsumexp)

    def _merge(self, place: int, output: Tensor, logsumexp: Tensor) -> None:
        if not self.begun and logsumexp.shape == self.logsumexp.shape:
            self.output, self.logsumexp, self.begun = output, logsumexp, True
            return
        self.begun = True
        size = logsumexp.shape[2]
        before = self.logsumexp.narrow(2, place, size)
        both = torch.logaddexp(before, logsumexp)
        shares = [(part - both).exp().where(both != -torch.inf, 0.0) for part in (before, logsumexp)]
        old, new = (share.unsqueeze(-1) for share in shares)
        self.output = _replaced(self.output, self.output.narrow(2, place, size) * old + output * new, place)
        self.logsumexp = _replaced(self.logsumexp, both, place)

    def results(self) -> tuple[Tensor, Tensor]:
        (query,) = self.queries.tensors
        return _by_position(self.output.to(query.dtype)), self.logsumexp


def gradients(call: Call, queries: Sequences, keys: Sequences) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the queries by these keys, and of these keys and values by these queries; summed in float32.

    `queries` are the gradient, the query, the output and the logarithm of the denominator.
    """
    _, query, _, _ = queries.tensors
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    found: list[Tensor | None] = [None, None, None]
    like = (query, *keys.tensors)
    for some, others, causal in pairs(queries, keys, call["causal"]):
        parts = dict(zip(("grad", "query", "output", "logsumexp"), queries.cut(some), strict=True))
        parts |= dict(zip(("key", "value"), keys.cut(others), strict=True))
        grads = call(**parts, mask=_mask(call, queries, some, others), causal=causal)
        places = [queries.place(some), *[keys.place(others)] * 2]
        for number, (grad, place) in enumerate(zip(grads, places, strict=True)):
            found[number] = _summed(found[number], grad.to(dtype), place, like[number].shape)
    return tuple(
        t.new_zeros(t.shape, dtype=dtype) if made is None else made
        for made, t in zip(found, like, strict=True)
    )


def _summed(total: Tensor | None, grad: Tensor, place: int, shape: Sequence[int]) -> Tensor:
    """A gradient added to a total that may be longer along dim 2."""
    if grad.shape[2] == shape[2]:
        return grad if total is None else total + grad
    if total is None:
        total = grad.new_zeros(shape)
    return _replaced(total, total.narrow(2, place, grad.shape[2]) + grad, place)


def _replaced(whole: Tensor, part: Tensor, place: int) -> Tensor:
    if part.shape[2] == whole.shape[2]:
        return part
    return torch.slice_scatter(whole, part, 2, place, place + part.shape[2])


def _mask(call: Call, queries: Sequences, some: Range, others: Range) -> Tensor | None:
    """The part of the mask for some queries, of which it has the rank's, and for keys, of which it has all."""
    mask: Tensor | None = call["mask"]
    if mask is None:
        return None
    if mask.dim() > 1 and mask.shape[-2] > 1:
        mask = mask.narrow(-2, queries.place(some), some[1] - some[0])
    return mask.narrow(-1, others[0], others[1] - others[0]) if mask.shape[-1] > 1 else mask


def _by_position(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).contiguous().transpose(1, 2)


def as_given(call: Call, grads: Sequence[Any]) -> tuple[Tensor, ...]:
    """Gradients of query, key and value in the dtype of these, stored position by position."""
    names = ("query", "key", "value")
    return tuple(_by_position(g.to(call[name].dtype)) for g, name in zip(grads, names, strict=True))
