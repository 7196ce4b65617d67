"""A call changed in one place: another rank, another size, another value of an argument, a list of one tensor more.

A sweep makes all such changes of the calls it knows; a challenge makes a few of them at random, one after the other.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..calls import Call, Facts, facts
from ..experiments import generators

# Values for numbers that may mean anything.
NUMBERS = (0, 1, -1, 2, 0.5)

# More dims than this show nothing new, where three tensors have them all.
ENOUGH_DIMS = 4
MOST_SIZE = 12
LONGEST_LIST = 4


@dataclass(frozen=True)
class Habit:
    """What the examples of an overload have in common: whether all of their tensors broadcast to each other, the fewest
    dims that each tensor has, if there are several examples, and whether three tensors or more always have the same
    numbers of dims. Kernels often take more than operators mean to."""

    broadcasts: bool = True
    fewest: tuple[int, ...] = ()
    one_rank: bool = False

    @classmethod
    def of(cls, examples: Sequence[Call]) -> "Habit":
        ranks = [[t.ndim for t in call.tensors] for call in examples if len(examples) > 1]
        return cls(
            all(_broadcast(call.tensors) for call in examples),
            tuple(min(column) for column in zip(*ranks, strict=False)),
            bool(ranks) and len(ranks[0]) > 2 and all(r == ranks[0] for r in ranks),
        )

    def may_drop_a_dim(self, index: int, tensor: Tensor) -> bool:
        least = self.fewest[index] if index < len(self.fewest) else 0
        return tensor.ndim > least and len(tensor) > 0


def changes(call: Call, habit: Habit, values: Mapping[str, Sequence[Any]]) -> Iterator[Call]:
    """Calls changed in one place. Other ranks come first: what an argument means shows where there are many dims."""
    changed = (
        _other_ranks(call, habit),
        _other_lists(call),
        _other_arguments(call, values),
        _other_sizes(call, habit),
    )
    return map(_with_fitting_values, itertools.chain(*changed))


def changed_at_random(call: Call, habit: Habit, choose: random.Random) -> Call | None:
    """The call changed in some place; None where there is nothing of the kind to change."""
    kinds = (
        _other_ranks(call, habit),
        _other_lists(call),
        _other_arguments(call, {}),
        _other_numbers(call),
        _other_sizes(call, habit),
        _single_elements(call),
    )
    options = list(choose.choice(kinds))
    return _with_fitting_values(choose.choice(options)) if options else None


def _with_fitting_values(call: Call) -> Call:
    """Where inputs must look a certain way, those of a changed call may not: a sorted sequence twice is not sorted, nor
    is one that had a sorter. Their floats are drawn anew."""
    generator = generators((call.name,))[0]
    if not generator.only:
        return call
    floats = {i: t for i, t in enumerate(call.tensors) if t.is_floating_point()}
    return _with_tensors(
        call, {i: generator.make(tuple(t.shape), t.dtype, t.device, i) for i, t in floats.items()}
    )


def _other_arguments(call: Call, values: Mapping[str, Sequence[Any]]) -> Iterator[Call]:
    ndim = max((t.ndim for t in call.tensors), default=0)
    for argument in call.schema.arguments if call.schema is not None else ():
        old = call.arguments.get(argument.name)
        for value in _values_for(argument, old, ndim, values, facts(call.op)):
            if type(value) is not type(old) or value != old:
                yield call.with_arguments(**{argument.name: value})


def _other_numbers(call: Call) -> Iterator[Call]:
    """Other values of arguments that are numbers, whatever they mean, or choices."""
    arguments = call.schema.arguments if call.schema is not None else ()
    names = [a.name for a in arguments if str(a.type) in ("float", "number")]
    few = {name: values for name, values in facts(call.op).choices.items() if values}
    yield from _other_arguments(call, {**dict.fromkeys(names, NUMBERS), **few})


def _values_for(
    argument: Any, old: Any, ndim: int, values: Mapping[str, Sequence[Any]], known: Facts
) -> Iterable[Any]:
    kind = str(argument.type)
    if "Tensor" in kind:
        return [None] if kind == "Optional[Tensor]" and old is not None else ()
    if argument.name in values:
        return values[argument.name]
    if argument.name in known.dims and "List" in kind:
        if isinstance(old, list) and len(old) == ndim and sorted(d % ndim for d in old) == list(range(ndim)):
            return [random.Random(i).sample(range(ndim), ndim) for i in range(4)]  # a permutation
        single = [[d] for d in range(-1, ndim)]
        return [*single, *([d, e] for d in range(ndim) for e in range(ndim) if d != e), [-1, 0], [-2]]
    if argument.name in known.dims and kind in ("int", "Optional[int]"):
        return list(range(-ndim - 1, ndim + 1))
    if kind == "bool":
        return (False, True)
    if argument.name in known.shapes and isinstance(old, list):
        return [[*old[:i], size + 1, *old[i + 1 :]] for i, size in enumerate(old) if size > 1]
    return known.values.get(argument.name, ())


def _with_tensors(call: Call, new: Mapping[int, Tensor]) -> Call:
    return call.with_tensors([new.get(i, tensor) for i, tensor in enumerate(call.tensors)])


def _other_ranks(call: Call, habit: Habit) -> Iterator[Call]:
    """One leading dim more or fewer, on all tensors or on one."""
    tensors = call.tensors
    if habit.one_rank:
        return
    if len(tensors) < 3 or max(t.ndim for t in tensors) < ENOUGH_DIMS:
        yield _with_tensors(call, {i: _longer(t) for i, t in enumerate(tensors)})
    if len(tensors) == 1 or all(habit.may_drop_a_dim(i, t) for i, t in enumerate(tensors) if t.ndim):
        yield _with_tensors(call, {i: t[0].clone() for i, t in enumerate(tensors) if t.ndim and len(t)})
    if len(tensors) > 1:
        for i, tensor in enumerate(tensors):
            yield _with_tensors(call, {i: _longer(tensor)})
            if habit.may_drop_a_dim(i, tensor):
                yield _with_tensors(call, {i: tensor[0].clone()})


def _other_sizes(call: Call, habit: Habit) -> Iterator[Call]:
    """A dim shorter, in all tensors or in one; a dim twice as long, of several tensors one of size 1; dims of one size
    changed together; dims in another order; a dim of size 1 in one of several tensors that broadcast."""
    tensors = call.tensors
    for dim in range(max((t.ndim for t in tensors), default=0)):
        shorter = {i: _shorter(t, dim) for i, t in enumerate(tensors) if t.ndim > dim and t.shape[dim] > 2}
        yield _with_tensors(call, shorter)
    for i, tensor in enumerate(tensors):
        for dim in range(tensor.ndim):
            if len(tensors) == 1 or tensor.shape[dim] == 1:
                yield _with_tensors(call, {i: torch.cat([tensor] * 2, dim)})
    turned = {i: t.transpose(0, -1).contiguous() for i, t in enumerate(tensors) if t.ndim > 1}
    yield _with_tensors(call, turned)
    if len(tensors) == 1:
        return
    # Where a window slides, dims that have one size have it by accident.
    accidental = slides(call)
    for size in sorted({s for t in tensors for s in t.shape if s > 1 and not accidental}):
        for new in (size - 1, size + 2):
            if 1 < new < MOST_SIZE:
                resized = {i: _resized(t, size, new) for i, t in enumerate(tensors) if size in t.shape}
                yield _with_tensors(call, resized)
    broadcasts = habit.broadcasts and _broadcast(tensors)
    for i, tensor in enumerate(tensors):
        for dim in range(tensor.ndim):
            if broadcasts:
                yield _with_tensors(call, {i: tensor.narrow(dim, 0, 1).clone()})
            if tensor.shape[dim] > 2:
                yield _with_tensors(call, {i: _shorter(tensor, dim)})


def _single_elements(call: Call) -> Iterator[Call]:
    """A dim of size 1 in all tensors that have it, counted from the left or from the right."""
    tensors = call.tensors
    for dim in range(-2, 2):
        having = {i: t for i, t in enumerate(tensors) if -t.ndim <= dim < t.ndim}
        yield _with_tensors(call, {i: t.narrow(dim, 0, 1).clone() for i, t in having.items() if t.shape[dim]})


def _other_lists(call: Call) -> Iterator[Call]:
    """A list of tensors with its last one twice, or without it."""
    for name, value in call.given.items():
        if isinstance(value, list) and value and all(isinstance(v, Tensor) for v in value):
            for other in ([*value, value[-1].clone()], value[:-1]):
                if 1 < len(other) <= LONGEST_LIST:
                    yield call.with_arguments(**{name: other})


def _longer(tensor: Tensor) -> Tensor:
    """The tensor three times, along a new first dim."""
    return tensor.unsqueeze(0).expand(3, *tensor.shape).clone()


def _shorter(tensor: Tensor, dim: int) -> Tensor:
    return tensor.narrow(dim, 0, tensor.shape[dim] - 1).clone()


def _resized(tensor: Tensor, size: int, new: int) -> Tensor:
    """The tensor with every dim of one size made another, by leaving out or repeating: dims that must agree have one
    size."""
    for dim in range(tensor.ndim):
        if tensor.shape[dim] == size:
            tensor = tensor.index_select(dim, torch.arange(new) % size)
    return tensor


def _broadcast(tensors: Sequence[Tensor]) -> bool:
    """True if the tensors broadcast to each other; for others a dim of size 1 is an accident, not an operand."""
    try:
        torch.broadcast_shapes(*(t.shape for t in tensors))
    except RuntimeError:
        return False
    return True


def slides(call: Call) -> bool:
    """True if the operator moves a window over the last dims."""
    return any(name in call.given for name in facts(call.op).sliding)
