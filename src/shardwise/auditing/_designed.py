"""Calls designed to refute a rule: torch's samples with arguments, shapes and values changed.

Samples show an operator as people call it. Rules are wrong where nobody looked: for an empty list of dims, for labels
that are ignored, for flags and numbers of dims that no sample has together. Every pair of levels of two arguments or
features of shapes occurs in some designed call, and so does each special value by itself.
"""

import itertools
from collections.abc import Iterator, Sequence

from torch import Tensor

from ..calls import Call, facts
from ..synthesis import Design, in_domain

# Designed calls with more elements than this take long and show nothing new.
_ELEMENTS = 2_000


def designed_calls(known: Sequence[Call], most: int) -> list[Call]:
    """Up to so many calls made from known ones of one overload, those with special values first; none that is known."""
    if not known or most < 1 or any(t.layout != known[0].tensors[0].layout for t in known[0].tensors):
        return []
    design = Design(known, as_alike=True)
    pairs = design.covering(2, _is_small, most)
    found: dict[str, Call] = {}
    for call in itertools.chain(_special(design.examples), pairs):
        if len(found) == most:
            break
        if _is_small(call):
            found.setdefault(str(call), call)
    given = set(map(str, known))
    return [call for text, call in found.items() if text not in given]


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


def _numbers(call: Call) -> Iterator[int]:
    """The first and the last number of every tensor of integers that has several."""
    for tensor in call.tensors:
        if _is_of_integers(tensor) and tensor.numel() > 1:
            numbers = tensor.flatten()
            yield from {int(numbers[0]), int(numbers[-1])}


def _is_of_integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype.itemsize == 1)
