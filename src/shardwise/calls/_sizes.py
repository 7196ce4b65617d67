"""The same call at other sizes: small ones, and such that shards come out even, uneven or empty.

Dims of equal size in the example vary together, since nothing else tells which of them must agree (the two k of
a matmul). A size that the operator will not accept stays as it was. Arguments that name sizes (`view`,
`layer_norm`, `select_backward`) follow the dims they name.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ._arguments import Shape
from ._call import Call
from ._facts import facts

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
# Tensors are not made larger than this: with many dims of one size, resizing would.
LARGEST = 20_000


@dataclass(frozen=True)
class Sized:
    """A call whose inputs have these shapes; its size arguments already fit them."""

    call: Call
    shapes: tuple[Shape, ...]


def example_sizes(call: Call) -> Sized:
    return Sized(call, tuple(tuple(t.shape) for t in call.tensors))


@functools.lru_cache(maxsize=256)
def size_leaves(call: Call) -> list[tuple[int, str, int]]:
    """(leaf, argument, value) of every integer argument that names a size."""
    named, known = list(call.named_leaves()), facts(call.op)
    several = Counter(name for _, name, _ in named)
    return [
        (leaf, name, value)
        for leaf, name, value in named
        if type(value) is int and known.is_size(name, several[name])
    ]


class Resizer:
    """Finds which sizes a call accepts, by running it; `runs` says whether a sized call does."""

    def __init__(self, call: Call, runs: Callable[[Sized], bool]) -> None:
        self.example = example_sizes(call)
        self.runs = runs
        self.classes = sorted({s for shape in self.example.shapes for s in shape if s > 1})
        self._accepted: dict[tuple[tuple[int, int], ...], Sized | None] = {}

    def sizings(self, ranks: int, case: str) -> Iterator[Sized]:
        """The call at sizes that make shards of this case: at one sizing where all classes can change
        together, else at one sizing per class."""
        wanted = SIZES[ranks, case]
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

    def resized(self, mapping: dict[int, int]) -> Sized | None:
        """The call with sizes changed by `mapping`, or None where the operator will not run so."""
        key = tuple(sorted(mapping.items()))
        if key not in self._accepted:
            candidates = (self._apply(mapping, args) for args in (False, True))
            small = (s for s in candidates if max(map(math.prod, s.shapes), default=1) <= LARGEST)
            self._accepted[key] = next((sized for sized in small if self.runs(sized)), None)
        return self._accepted[key]

    def _apply(self, mapping: dict[int, int], with_arguments: bool) -> Sized:
        call, shapes = self.example.call, self.example.shapes
        new_shapes = tuple(tuple(mapping.get(s, s) for s in shape) for shape in shapes)
        if not with_arguments:
            return Sized(call, new_shapes)
        products = dict(mapping)
        for old, new in zip(shapes, new_shapes, strict=True):
            for start in range(len(old)):
                for stop in range(start + 2, len(old) + 1):
                    products.setdefault(math.prod(old[start:stop]), math.prod(new[start:stop]))
        changes = {leaf: products.get(value, value) for leaf, _, value in size_leaves(call)}
        return Sized(call.with_leaves(changes), new_shapes)
