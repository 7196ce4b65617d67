"""Many calls of one operator: other ranks, sizes and arguments than the example's.

Calls come from OpInfo samples, or from what the user gives, and from changing them one step at a time: every dim, both
values of a flag, one dim more or fewer, an operand of size 1, a list of one tensor more. Calls that do not run are left
out and counted, and so are calls that change nothing (a roll by 0); of these a few are kept apart.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..rules import DIM_ARGUMENTS
from ._call import Call
from ._dispatch import dispatched
from ._laboratory import changes_nothing
from ._samples import find_opinfos, samples
from ._values import generators

# Other values worth trying for arguments that are not dims, by name.
VALUES: dict[str, tuple[Any, ...]] = {
    "k": (1, 2),
    "diagonal": (-1, 0, 1),
    "offset": (-1, 0, 1),
    "shifts": ([1], [2], [-1]),
    "repeats": (2, 3),
    "length": (1, 2),
    "start": (0, 1),
    "correction": (0, 1),
    "groups": (1, 2),
}

# Lists that say how large the output is.
SIZE_ARGUMENTS = ("size", "shape")

# More dims than this show nothing that fewer do not; nor more than the second, where three tensors have them all.
MOST_DIMS = 5
ENOUGH_DIMS = 4
MOST_SIZE = 12
LONGEST_LIST = 4
# Changed calls with more elements than this in an output take long and show nothing new.
MOST_ELEMENTS = 20_000

# As many calls as are worth having; see `sweep`.
ENOUGH = (200, 150, 120, 100)


@dataclass
class Sweep:
    """Calls by the overload they reach, in a fixed random order, and how many were left out. `idle` are calls that
    change nothing: a rule need not say all that holds for them, but nothing that does not."""

    calls: dict[str, list[Call]] = field(default_factory=dict)
    idle: dict[str, list[Call]] = field(default_factory=dict)
    skipped: int = 0
    values: dict[str, list[Any]] = field(default_factory=dict)


def sweep(
    op: Callable[..., Any],
    examples: Sequence[tuple[list[Any], dict[str, Any]]] = (),
    values: Mapping[str, Sequence[Any]] | None = None,
    enough: Sequence[int] = ENOUGH,
) -> Sweep:
    """The calls of an operator, judged call by overload. `examples` are calls of it; without them OpInfo's serve.
    `values` are those to try for named arguments, beside the examples' own; calls changed in one place are taken up
    to the first number of `enough`, in two places up to the second, and so on."""
    found = Sweep()
    seen: set[Any] = set()
    newest = [dispatched(call).judged for call in _examples(op, examples) if _add(found, call, seen)]
    habits = {name: Habit.of([c for c in newest if c.name == name]) for name in found.calls}
    for depth, most in enumerate(enough):
        changed = [list(_changes(c, values or {}, habits.get(c.name, Habit()))) for c in newest]
        newest = []
        for call in _turns(changed):
            if len(found.calls.get(call.name, ())) < most and _add(found, call, seen, MOST_ELEMENTS):
                newest.append(call)
        random.Random(depth).shuffle(newest)
    for name, calls in found.calls.items():
        # A list of one tensor says little about lists: a cat of one is that one.
        long = [call for call in calls if all(len(group) > 1 for group in call.lists)]
        found.calls[name] = long or calls
        random.Random(0).shuffle(found.calls[name])
    return found


def _examples(op: Callable[..., Any], examples: Sequence[tuple[list[Any], dict[str, Any]]]) -> Iterator[Call]:
    if examples:
        for args, kwargs in examples:
            yield Call.of(op, args, kwargs)
        return
    for info in find_opinfos(op):
        for function, args, kwargs in samples(info):
            front = op if isinstance(op, torch._ops.OpOverload) and function is op else function
            yield Call.of(front, args, kwargs)


def _add(found: Sweep, call: Call, seen: set[Any], elements: float = math.inf) -> bool:
    """Keep a call that runs, is new and does something, with no more than so many elements in an output."""
    try:
        judged = dispatched(call).judged
        key = _signature(judged)
        if key in seen:
            return False
        seen.add(key)
        inputs = [t.clone() for t in judged.tensors]
        outputs = [o for o in judged.run(inputs) if isinstance(o, Tensor)]
    except Exception:
        found.skipped += 1
        return False
    empty = any(t.numel() == 0 for t in (*judged.tensors, *outputs))
    pointless = bool(judged.tensors) and all(t.numel() == 1 for t in judged.tensors)
    pointless = pointless or any(t.ndim > MOST_DIMS or _is_scalar_mask(t) for t in judged.tensors)
    pointless = pointless or any(o.numel() > elements for o in outputs)
    idle = len(judged.leaves) > len(judged.slots) and changes_nothing(judged.tensors, outputs)
    if empty or pointless or idle or not outputs or _window_stands_still(judged, outputs):
        found.skipped += 1
        if idle and not empty and not pointless:
            found.idle.setdefault(judged.name, []).append(judged)
        return False
    found.calls.setdefault(judged.name, []).append(judged)
    for _, name, value in judged.named_leaves():
        if not isinstance(value, Tensor) and (
            name in DIM_ARGUMENTS or name in VALUES or isinstance(value, bool)
        ):
            known = found.values.setdefault(name, [])
            if value not in known:
                known.append(value)
    return True


def _signature(call: Call) -> Any:
    tensors = tuple((tuple(t.shape), t.dtype) for t in call.tensors)
    rest = tuple(
        str(leaf) for i, leaf in enumerate(call.leaves) if i not in call.slots and i not in call.outs
    )
    return call.name, str(call.tree), tensors, rest


def _turns(groups: Iterable[list[Call]]) -> Iterator[Call]:
    remaining = [list(g) for g in groups]
    while any(remaining):
        for group in remaining:
            if group:
                yield group.pop(0)


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


def _changes(call: Call, values: Mapping[str, Sequence[Any]], habit: Habit) -> Iterator[Call]:
    """Calls changed in one place. Other ranks come first: what an argument means shows where there are many dims."""
    changed = (
        _other_ranks(call, habit),
        _other_lists(call),
        _other_arguments(call, values),
        _other_sizes(call, habit),
    )
    return map(_with_fitting_values, itertools.chain(*changed))


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
    args, kwargs = pytree.tree_unflatten(list(call.leaves), call.tree)
    schema = getattr(call.op, "_schema", None)
    if schema is None:
        return
    for i, argument in enumerate(schema.arguments):
        place: Any = i if i < len(args) and not argument.kwarg_only else argument.name
        held, at = (args, place) if isinstance(place, int) else (kwargs, place)
        old = held[at] if isinstance(place, int) or at in held else argument.default_value
        for value in _values_for(argument, old, ndim, values):
            if type(value) is type(old) and value == old:
                continue
            new_args, new_kwargs = list(args), dict(kwargs)
            if isinstance(place, int):
                new_args[place] = value
            else:
                new_kwargs[place] = value
            yield Call.of(call.op, new_args, new_kwargs)


def _values_for(argument: Any, old: Any, ndim: int, values: Mapping[str, Sequence[Any]]) -> Iterable[Any]:
    kind = str(argument.type)
    if "Tensor" in kind:
        return [None] if kind == "Optional[Tensor]" and old is not None else ()
    if argument.name in values:
        return values[argument.name]
    if argument.name in DIM_ARGUMENTS and "List" in kind:
        if isinstance(old, list) and len(old) == ndim and sorted(d % ndim for d in old) == list(range(ndim)):
            return [random.Random(i).sample(range(ndim), ndim) for i in range(4)]  # a permutation
        single = [[d] for d in range(-1, ndim)]
        return [*single, *([d, e] for d in range(ndim) for e in range(ndim) if d != e), [-1, 0], [-2]]
    if argument.name in DIM_ARGUMENTS and kind in ("int", "Optional[int]"):
        return list(range(-ndim - 1, ndim + 1))
    if kind == "bool":
        return (False, True)
    if argument.name in SIZE_ARGUMENTS and isinstance(old, list):
        return [[*old[:i], size + 1, *old[i + 1 :]] for i, size in enumerate(old) if size > 1]
    return VALUES.get(argument.name, ())


def _with_tensors(call: Call, new: Mapping[int, Tensor]) -> Call:
    return call.with_leaves({call.slots[i]: tensor for i, tensor in new.items()})


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
    slides = _slides(call)
    for size in sorted({s for t in tensors for s in t.shape if s > 1 and not slides}):
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


def _other_lists(call: Call) -> Iterator[Call]:
    """A list of tensors with its last one twice, or without it."""
    args, kwargs = pytree.tree_unflatten(list(call.leaves), call.tree)
    for i, value in enumerate(args):
        if isinstance(value, list) and value and all(isinstance(v, Tensor) for v in value):
            for other in ([*value, value[-1].clone()], value[:-1]):
                if 1 < len(other) <= LONGEST_LIST:
                    yield Call.of(call.op, [*args[:i], other, *args[i + 1 :]], kwargs)


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


def _slides(call: Call) -> bool:
    """True if the operator moves a window over the last dims."""
    return any(name == "dilation" for _, name, _ in call.named_leaves())


def _window_stands_still(call: Call, outputs: Sequence[Tensor]) -> bool:
    """A window that fits a dim once does not move along it: the dim is summed over, by accident of its size."""
    return _slides(call) and any(1 in output.shape[2:] for output in outputs)


def _is_scalar_mask(tensor: Tensor) -> bool:
    """A mask of one element, or an index without dims: it means all or nothing, which says little about masks."""
    if tensor.dtype == torch.bool:
        return tensor.numel() == 1
    return tensor.ndim == 0 and not tensor.is_floating_point() and not tensor.is_complex()
