"""Calls designed to refute a rule: torch's samples with arguments, shapes and values changed.

Samples show an operator as people call it. Rules are wrong where nobody looked: for an empty list of dims, for labels
that are ignored, for a mask that no sample has, for flags and numbers of dims that no sample has together. Every pair
of levels of two arguments or features of shapes occurs in some designed call, and so does each special value by itself.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..calls import Call, facts
from ..synthesis import Design, in_domain

# Designed calls with more elements than this take long and show nothing new.
_ELEMENTS = 2_000


@dataclass(frozen=True)
class Given:
    """A tensor of ones for an optional argument, with a flag the other way or None."""

    name: str
    shape: tuple[int, ...]
    flag: str | None

    def to(self, call: Call) -> Call:
        like = next((t for t in call.tensors if t.is_floating_point()), call.tensors[0])
        changes: dict[str, Any] = {self.name: torch.ones(self.shape, dtype=like.dtype)}
        if self.flag is not None:
            changes[self.flag] = not call[self.flag]
        return call.with_arguments(**changes)


def designed_calls(known: Sequence[Call], most: int, given: Sequence[Given] = ()) -> list[Call]:
    """Up to so many calls made from known ones of one overload, those with special values first, then those of `given`
    tensors; none that is known."""
    if not _can_be_changed(known) or most < 1:
        return []
    design = Design(known, as_alike=True)
    pairs = design.covering(2, _is_small, most)
    found: dict[str, Call] = {}
    for call in itertools.chain(_special(design.examples), (each.to(known[0]) for each in given), pairs):
        if len(found) == most:
            break
        if _is_small(call):
            found.setdefault(str(call), call)
    texts = set(map(str, known))
    return [call for text, call in found.items() if text not in texts]


def optional_tensors(known: Sequence[Call]) -> list[Given]:
    """Tensors for each optional argument that no known call gives one for, such as the mask of attention: of one shape
    of each number of dims that the first call accepts, fewest dims first, and with each flag either way.

    Kernels that do not test their arguments may crash on shapes that do not fit: to be run in a process of its own."""
    if not _can_be_changed(known) or known[0].schema is None:
        return []
    arguments = known[0].schema.arguments
    found: list[Given] = []
    flags = [None, *(argument.name for argument in arguments if str(argument.type) == "bool")]
    absent = [
        a.name
        for a in arguments
        if str(a.type) == "Optional[Tensor]" and all(c[a.name] is None for c in known)
    ]
    for name, flag in itertools.product(absent, flags):
        taken: dict[int, Given] = {}
        for shape in _shapes(known[0]):
            given = Given(name, shape, flag)
            if len(shape) not in taken and _accepts(known[0], given):
                taken[len(shape)] = given
        found += taken.values()
    return sorted(found, key=lambda given: len(given.shape))


def _can_be_changed(known: Sequence[Call]) -> bool:
    return bool(known) and all(t.layout == known[0].tensors[0].layout for t in known[0].tensors)


def _is_small(call: Call) -> bool:
    return in_domain(call, _ELEMENTS)


def _special(examples: Sequence[Call]) -> Iterator[Call]:
    """The examples with an empty list where dims are listed, and with a number that occurs in a tensor of integers
    where a number may select some of them (an ignored label, a padding index)."""
    for call in examples:
        for argument in call.schema.arguments if call.schema is not None else ():
            if argument.is_out:
                continue
            value = call[argument.name]
            if argument.name in facts(call.op).dims and isinstance(value, list) and value:
                yield call.with_arguments(**{argument.name: []})
            if str(argument.type) in ("int", "SymInt") and argument.name not in facts(call.op).dims:
                for number in _numbers(call):
                    yield call.with_arguments(**{argument.name: number})


def _accepts(call: Call, given: Given) -> bool:
    """Whether an operator takes the tensor: it runs, with results of the shapes that it has without."""
    try:
        before, after = call.run(), given.to(call).run()
    except Exception:
        return False  # other shapes are tried
    return [t if t is None else t.shape for t in before] == [t if t is None else t.shape for t in after]


def _shapes(call: Call) -> Iterator[tuple[int, ...]]:
    """Shapes that an operator may want of another tensor: those of its tensors, two sizes of them after the first dims
    of its first tensor, two sizes alone, one alone."""
    sizes = list(dict.fromkeys(size for t in call.tensors for size in t.shape if size > 1))
    pairs = list(itertools.product(sizes, repeat=2))
    yield from dict.fromkeys(tuple(t.shape) for t in call.tensors)
    yield from ((*call.tensors[0].shape[:-2], *pair) for pair in pairs if call.tensors[0].ndim > 2)
    yield from pairs
    yield from ((size,) for size in sizes)


def _numbers(call: Call) -> Iterator[int]:
    """The first and the last number of every tensor of integers that has several."""
    for tensor in call.tensors:
        if _is_of_integers(tensor) and tensor.numel() > 1:
            numbers = tensor.flatten()
            yield from {int(numbers[0]), int(numbers[-1])}


def _is_of_integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype.itemsize == 1)
