"""Attention of some queries to some keys, by blocks: the exact sum of what the operator gives for each block.

A rank that holds some positions of the queries and some of the keys computes the pairs of them that attend: where it is
causal, keys that lie before the queries are attended to whole, those at the same positions causally, and the rest is
left out. The results of blocks with different keys are merged by the logarithms of their denominators.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from ..calls import Call

# Positions of a sequence, or of a tensor's dim, from the first to before the last.
Range = tuple[int, int]
# Queries and keys that attend, by where they lie in the tensors, and whether they attend causally.
Block = tuple[Range, Range, bool]


@dataclass(frozen=True)
class Sequences:
    """Tensors whose dim 2 holds these ranges of positions one after another."""

    ranges: tuple[Range, ...]
    tensors: tuple[Tensor, ...]

    @cached_property
    def begins(self) -> list[int]:
        """Where each range begins in the tensors, and where the last ends."""
        return [0, *accumulate(stop - start for start, stop in self.ranges)]

    @property
    def whole(self) -> Range:
        return 0, self.begins[-1]

    def place(self, number: int, wanted: Range) -> Range:
        """Where positions of a range lie in the tensors."""
        shift = self.begins[number] - self.ranges[number][0]
        return wanted[0] + shift, wanted[1] + shift

    def at(self, wanted: Range) -> Tensor:
        """The only tensor at positions that lie in one of the ranges."""
        number = next(
            i for i, (start, stop) in enumerate(self.ranges) if start <= wanted[0] < wanted[1] <= stop
        )
        (tensor,) = self.cut(self.place(number, wanted))
        return tensor

    def cut(self, place: Range) -> tuple[Tensor, ...]:
        if place == self.whole:
            return self.tensors
        return tuple(t.narrow(2, place[0], place[1] - place[0]) for t in self.tensors)


def blocks(queries: Sequences, keys: Sequences, causal: bool) -> Iterator[Block]:
    """The pairs of queries and keys that attend, as few blocks as possible, each whole or causal and square."""
    sees = [
        [not causal or last <= start for _, last in keys.ranges] for start, _ in queries.ranges
    ]  # which ranges of keys lie before which ranges of queries
    everything = [all(row) for row in sees]
    everyone = [all(row[number] for row in sees) for number in range(len(keys.ranges))]
    found: list[Block] = []
    if all(everything):
        found.append((queries.whole, keys.whole, False))
    else:
        found += [
            (queries.whole, keys.place(j, keys.ranges[j]), False) for j, all_ in enumerate(everyone) if all_
        ]
        for i, some in enumerate(queries.ranges):
            if everything[i]:
                found.append((queries.place(i, some), keys.whole, False))
                continue
            for j, others in enumerate(keys.ranges):
                if not everyone[j]:
                    found += [(queries.place(i, q), keys.place(j, k), c) for q, k, c in _causal(some, others)]
    for query, key, is_causal in found:
        if query[0] < query[1] and key[0] < key[1]:
            yield query, key, is_causal


def _causal(queries: Range, keys: Range) -> Iterator[Block]:
    (start, stop), (first, last) = queries, keys
    yield queries, (first, min(last, start)), False
    first, end = max(first, start), min(last, stop)
    if first < end:
        yield (first, end), (first, end), True
        yield (end, stop), (first, end), False


class Attended:
    """The output of attention and the logarithm of its denominator, for keys that come in turns."""

    def __init__(self, call: Call, queries: Sequences, mask_at: int) -> None:
        """The call's mask, if any, is for keys from the position `mask_at` on."""
        self.call, self.queries, self.mask_at = call, queries, mask_at
        self.dtype = sum_dtype(queries.tensors[0])
        # By range of queries.
        self.found: list[tuple[Tensor, Tensor] | None] = [None] * len(queries.ranges)

    def add(self, keys: Sequences) -> None:
        """Attend to keys and values."""
        for some, others, causal in blocks(self.queries, keys, self.call["causal"]):
            (query,), (key, value) = self.queries.cut(some), keys.cut(others)
            mask = _mask(self.call, some, keys, others, self.mask_at)
            made = self.call(query=query, key=key, value=value, mask=mask, causal=causal)
            for number in range(len(self.found)):
                own = self.queries.place(number, self.queries.ranges[number])
                common = max(own[0], some[0]), min(own[1], some[1])
                if common[0] < common[1]:
                    part = [t.narrow(2, common[0] - some[0], common[1] - common[0]) for t in made]
                    self.found[number] = self._merged(number, part, common[0] - own[0])

    def _merged(self, number: int, made: Sequence[Tensor], place: int) -> tuple[Tensor, Tensor]:
        """What a range has with the results of more keys, for its queries from `place` on."""
        output, logsumexp = made[0].to(self.dtype), made[1]
        start, stop = self.queries.ranges[number]
        if self.found[number] is None and logsumexp.shape[2] == stop - start:
            return output, logsumexp
        outputs, sums = self.found[number] or self._nothing(number)
        before = sums.narrow(2, place, logsumexp.shape[2])
        old, new = _share(before, logsumexp), _share(logsumexp, before)
        merged = (outputs.narrow(2, place, logsumexp.shape[2]) * old).addcmul_(output, new)
        return _replaced(outputs, merged, place), _replaced(sums, torch.logaddexp(before, logsumexp), place)

    def _nothing(self, number: int) -> tuple[Tensor, Tensor]:
        """For queries that attend to nothing."""
        (query,), (start, stop) = self.queries.tensors, self.queries.ranges[number]
        rows = (*query.shape[:2], stop - start)
        output = query.new_zeros((*rows, self.call["value"].shape[3]), dtype=self.dtype)
        return output, query.new_full(rows, -torch.inf, dtype=self.dtype)

    def results(self) -> tuple[Tensor, Tensor]:
        found = [self._nothing(number) if made is None else made for number, made in enumerate(self.found)]
        dtype = self.queries.tensors[0].dtype
        output, logsumexp = (_joined([made[i] for made in found]) for i in range(2))
        return by_position(output.to(dtype)), logsumexp


def gradients(call: Call, queries: Sequences, keys: Sequences, mask_at: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the queries by these keys, and of these keys and values by these queries.

    `queries` are the gradient, the query, the output and the logarithm of the denominator. The call's mask, if any, is
    for keys from the position `mask_at` on.
    """
    like = (queries.tensors[1], *keys.tensors)
    found: list[Tensor | None] = [None, None, None]
    for some, others, causal in blocks(queries, keys, call["causal"]):
        parts = dict(zip(("grad", "query", "output", "logsumexp"), queries.cut(some), strict=True))
        parts |= dict(zip(("key", "value"), keys.cut(others), strict=True))
        made = call(**parts, mask=_mask(call, some, keys, others, mask_at), causal=causal)
        places = (some, others, others)
        for number, (grad, place) in enumerate(zip(made, places, strict=True)):
            found[number] = _summed(found[number], grad, place, like[number])
    of_query, of_key, of_value = (
        t.new_zeros(t.shape) if made is None else made for made, t in zip(found, like, strict=True)
    )
    return of_query, of_key, of_value


def _summed(total: Tensor | None, grad: Tensor, place: Range, like: Tensor) -> Tensor:
    """A gradient for a part of a dim added to that of all, in a dtype with room for sums."""
    if place == (0, like.shape[2]):
        return grad if total is None else total.to(sum_dtype(total)) + grad
    if total is None:
        before = grad.new_zeros((*grad.shape[:2], place[0], grad.shape[3]))
        after = grad.new_zeros((*grad.shape[:2], like.shape[2] - place[1], grad.shape[3]))
        return torch.cat([before, grad, after], 2)
    total = total.to(sum_dtype(total))
    return _replaced(total, total.narrow(2, place[0], place[1] - place[0]) + grad, place[0])


def _share(part: Tensor, other: Tensor) -> Tensor:
    """The weight of an output beside another one, given the logarithms of their denominators."""
    return (part - other).sigmoid().where(part != -torch.inf, 0.0).unsqueeze(-1)


def _replaced(whole: Tensor, part: Tensor, place: int) -> Tensor:
    if part.shape[2] == whole.shape[2]:
        return part
    return torch.slice_scatter(whole, part, 2, place, place + part.shape[2])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 2)


def _mask(call: Call, some: Range, keys: Sequences, others: Range, mask_at: int) -> Tensor | None:
    """The part of the mask for some queries and keys; it has the rank's queries, and keys from `mask_at` on."""
    mask: Tensor | None = call["mask"]
    if mask is None:
        return None
    if mask.dim() > 1 and mask.shape[-2] > 1:
        mask = mask.narrow(-2, some[0], some[1] - some[0])
    if mask.shape[-1] == 1:
        return mask
    ((start, _),) = keys.ranges
    return mask.narrow(-1, start - mask_at + others[0], others[1] - others[0])


def as_given(call: Call, grads: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of query, key and value in the dtype of these."""
    names = ("query", "key", "value")
    return tuple(by_position(g.to(call[name].dtype)) for g, name in zip(grads, names, strict=True))


def by_position(heads: Tensor) -> Tensor:
    """The same values, stored position by position as attention stores them."""
    return heads.transpose(1, 2).contiguous().transpose(1, 2)


def sum_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
