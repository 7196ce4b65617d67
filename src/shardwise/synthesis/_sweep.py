"""Many calls of one operator: other ranks, sizes and arguments than the example's.

Calls come from OpInfo samples, or from what the user gives, and from changing them one step at a time: every dim, both
values of a flag, one dim more or fewer, an operand of size 1, a list of one tensor more. Calls that do not run are left
out and counted, and so are calls that change nothing (a roll by 0); of these a few are kept apart.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..calls import Call, dispatched, facts, find_opinfos, samples
from ..experiments import changes_nothing
from ._changes import Habit, changes, slides

# More dims than this show nothing that fewer do not.
MOST_DIMS = 5
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
    examples: Sequence[Call] = (),
    values: Mapping[str, Sequence[Any]] | None = None,
    enough: Sequence[int] = ENOUGH,
) -> Sweep:
    """The calls of an operator, judged call by overload. `examples` are calls of it; without them OpInfo's serve.
    `values` are those to try for named arguments, beside the examples' own; calls changed in one place are taken up
    to the first number of `enough`, in two places up to the second, and so on."""
    found = Sweep()
    seen: set[Any] = set()
    newest = [dispatched(call).judged for call in examples or _samples(op) if _add(found, call, seen)]
    habits = {name: Habit.of([c for c in newest if c.name == name]) for name in found.calls}
    for depth, most in enumerate(enough):
        changed = [list(changes(c, habits.get(c.name, Habit()), values or {})) for c in newest]
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


def _samples(op: Callable[..., Any]) -> Iterator[Call]:
    for info in find_opinfos(op):
        yield from samples(info)


def _add(found: Sweep, call: Call, seen: set[Any], elements: float = math.inf) -> bool:
    """Keep a call that runs, is new and does something, with no more than so many elements in an output."""
    try:
        judged = dispatched(call).judged
        if judged.signature in seen:
            return False
        seen.add(judged.signature)
        inputs = [t.clone() for t in judged.tensors]
        outputs = [o for o in judged.run(inputs) if isinstance(o, Tensor)]
    except Exception:
        found.skipped += 1
        return False
    empty = any(t.numel() == 0 for t in (*judged.tensors, *outputs))
    pointless = bool(judged.tensors) and all(t.numel() == 1 for t in judged.tensors)
    pointless = pointless or any(t.ndim > MOST_DIMS or _is_scalar_mask(t) for t in judged.tensors)
    pointless = pointless or any(o.numel() > elements for o in outputs)
    idle = len(list(judged.leaves())) > len(judged.tensors) and changes_nothing(judged.tensors, outputs)
    if empty or pointless or idle or not outputs or _window_stands_still(judged, outputs):
        found.skipped += 1
        if idle and not empty and not pointless:
            found.idle.setdefault(judged.name, []).append(judged)
        return False
    found.calls.setdefault(judged.name, []).append(judged)
    tried = facts(judged.op)
    for name, value in judged.leaves():
        if not isinstance(value, Tensor) and (
            name in tried.dims or name in tried.values or isinstance(value, bool)
        ):
            known = found.values.setdefault(name, [])
            if value not in known:
                known.append(value)
    return True


def _turns(groups: Iterable[list[Call]]) -> Iterator[Call]:
    remaining = [list(g) for g in groups]
    while any(remaining):
        for group in remaining:
            if group:
                yield group.pop(0)


def _window_stands_still(call: Call, outputs: Sequence[Tensor]) -> bool:
    """A window that fits a dim once does not move along it: the dim is summed over, by accident of its size."""
    return slides(call) and any(1 in output.shape[2:] for output in outputs)


def _is_scalar_mask(tensor: Tensor) -> bool:
    """A mask of one element, or an index without dims: it means all or nothing, which says little about masks."""
    if tensor.dtype == torch.bool:
        return tensor.numel() == 1
    return tensor.ndim == 0 and not tensor.is_floating_point() and not tensor.is_complex()
