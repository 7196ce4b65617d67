"""The same call at other sizes: small ones, and such that shards come out even, uneven or empty.

Dims of equal size in the example vary together, since nothing else shows which of them must agree (the two k of
a matmul). A size that the operator does not accept stays unchanged. Arguments that are sizes (`view`,
`layer_norm`, `select_backward`) change with their dims.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from ..placements import shard_sizes
from ._arguments import with_leaves
from ._call import Call

# Sizes that give even, uneven and empty pieces, by number of ranks, for the classes from small to large; even pieces
# also of one element each (`squeeze` drops such a dim) and of odd sizes (windows of two fit even ones).
# Two ranks have an empty piece only of a dim of size 1, which says nothing about sharding.
SIZES: dict[tuple[int, str], tuple[int, ...]] = {
    (2, "single"): (2,),
    (3, "single"): (3,),
    (4, "single"): (4,),
    (2, "odd"): (6, 10, 14),
    (3, "odd"): (9, 15, 21),
    (4, "odd"): (12, 20, 28),
    (2, "even"): (4, 6, 8, 10, 12),
    (2, "uneven"): (5, 7, 9, 11, 13),
    (3, "even"): (3, 6, 9, 12, 15),
    (3, "uneven"): (5, 7, 8, 10, 11),
    (3, "empty"): (2, 4),
    (4, "even"): (4, 8, 12, 16, 20),
    (4, "uneven"): (7, 10, 11, 13, 14),
    (4, "empty"): (5, 6, 9),
}


@cache
def sizes_for(ranks: int, case: str) -> tuple[int, ...]:
    """The sizes for any number of ranks: those listed, or such as give the same pieces."""
    if ranks in (2, 3, 4):
        return SIZES[ranks, case]
    if case in ("single", "odd", "even"):
        return {"single": (ranks,), "odd": (3 * ranks, 5 * ranks), "even": (ranks, 2 * ranks, 3 * ranks)}[
            case
        ]
    smallest = {
        size: shard_sizes(size, ranks)[-1] for size in range(ranks // 2 + 1, 4 * ranks) if size % ranks
    }
    return tuple(size for size, last in smallest.items() if bool(last) == (case == "uneven"))[:5]


# Tensors are not made larger than this: with many dims of one size, resizing would.
LARGEST = 20_000


def resized(
    call: Call,
    sizes: Mapping[int, int],
    numbers: Mapping[int, int] | None = None,
    names: Collection[str] | None = None,
) -> Call:
    """The call on meta tensors with other sizes; dims of equal size change together. `numbers` says what becomes of
    integers among the arguments, of those in `names` or of all; those it does not list stay as they are."""
    tensors = [
        torch.empty([sizes.get(size, size) for size in t.shape], dtype=t.dtype, device="meta")
        for t in call.tensors
    ]
    if numbers:

        def changed(leaf: Any) -> Any:
            return numbers.get(leaf, leaf) if type(leaf) is int else leaf

        chosen = call.given if names is None else names
        call = call.with_arguments(**{name: with_leaves(call.given[name], changed) for name in chosen})
    return call.with_tensors(tensors)


class Resizer:
    """Finds which sizes a call accepts, by running it; `runs` says whether the call at other sizes does."""

    def __init__(self, call: Call, runs: Callable[[Call], bool]) -> None:
        self.call = call
        self.runs = runs
        self.classes = sorted({size for shape in call.shapes for size in shape if size > 1})
        self._accepted: dict[tuple[tuple[int, int], ...], Call | None] = {}

    def sizings(self, ranks: int, case: str, blocks: int = 1) -> Iterator[Call]:
        """The call at sizes that make shards of this case: at one sizing where all classes can change
        together, else at one sizing per class. Even ones are so in each of several `blocks`."""
        wanted = sizes_for(ranks, case)
        if case == "even":
            wanted = tuple(size * blocks for size in wanted)
        together = {c: wanted[min(i, len(wanted) - 1)] for i, c in enumerate(self.classes)}
        if (sized := self.resized(together)) is not None:
            yield sized
            return
        alone = {}
        for i, size_class in enumerate(self.classes):
            # Sizes of different classes differ where they can, so that size arguments name one dim only.
            order = wanted[i:] + wanted[:i]
            if (size := self._first_accepted(size_class, order)) is not None:
                alone[size_class] = size
        if (sized := self.resized(alone)) is not None:
            if alone:
                yield sized
            return
        for size_class, size in alone.items():
            single = self.resized({size_class: size})
            if single is not None:
                yield single

    def _first_accepted(self, size_class: int, wanted: Sequence[int]) -> int | None:
        return next((s for s in wanted if self.resized({size_class: s}) is not None), None)

    def resized(self, sizes: Mapping[int, int]) -> Call | None:
        """The call with sizes changed, or None where the operator does not run so. Arguments that are sizes are first
        left unchanged."""
        key = tuple(sorted(sizes.items()))
        if key not in self._accepted:
            names = self.call.size_arguments
            numbers = [{}, _with_products(self.call, sizes)] if names else [{}]
            candidates = (resized(self.call, sizes, n, names) for n in numbers)
            small = (c for c in candidates if max(map(math.prod, c.shapes), default=1) <= LARGEST)
            self._accepted[key] = next((sized for sized in small if self.runs(sized)), None)
        return self._accepted[key]


def _with_products(call: Call, sizes: Mapping[int, int]) -> dict[int, int]:
    """What becomes of numbers that are sizes, or the sizes of neighbouring dims multiplied."""
    numbers = dict(sizes)
    for old in call.shapes:
        new = [sizes.get(size, size) for size in old]
        for start in range(len(old)):
            for stop in range(start + 2, len(old) + 1):
                numbers.setdefault(math.prod(old[start:stop]), math.prod(new[start:stop]))
    return numbers
