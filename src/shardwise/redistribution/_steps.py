"""Every single step between the layouts of a mesh, computed once and stored as arrays.

There are two kinds of steps. One axis may change its placement, if it is the innermost axis of its dim: by a gather, a
reduction, an all-to-all, or a free local slice. And whole shards may be exchanged between ranks, by a permute: two
axes of equal size swap their placements, or axes of different sizes their nesting order on a dim.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, permutations, product

import numpy as np
from torch.distributed.tensor.placement_types import Placement

from ..layout import mixes_partials
from ..mesh import COLLECTIVES
from ..placements import is_partial, is_replicate, is_shard

# The kinds of steps. The last two are local and free.
KINDS = (*COLLECTIVES, "slice", "to_partial")
_ALL_GATHER, _REDUCE_SCATTER, _ALL_REDUCE, _ALL_TO_ALL, _PERMUTE, _SLICE, _TO_PARTIAL = range(len(KINDS))

Cut = tuple[int | None, int]  # split factor, ranks
State = tuple[tuple[int, ...], tuple[int, ...]]  # the code of each axis's placement; axes in nesting order
_Found = tuple[int, int, int, int, int, int, int, int]  # one step, its fields as in `Steps`


@dataclass(frozen=True)
class States:
    """All layouts, encoded as integers. `choices` are the codes (indices into `placements`) that each axis may have."""

    shape: tuple[int, ...]
    placements: tuple[Placement, ...]
    dims: tuple[int, ...]  # the dim that each placement shards, or -1
    all: tuple[State, ...]
    choices: tuple[tuple[int, ...], ...]
    index: dict[State, int]
    strided: frozenset[int]  # the codes of strided shards

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        placements: tuple[Placement, ...],
        choices: tuple[tuple[int, ...], ...],
        ndim: int,
    ) -> "States":
        dims = tuple(p.dim if is_shard(p) else -1 for p in placements)
        states: list[State] = []
        for codes in product(*choices):
            if mixes_partials(placements[code] for code in codes):
                continue
            by_dim = [[axis for axis, code in enumerate(codes) if dims[code] == dim] for dim in range(ndim)]
            nestings = product(*(permutations(axes) for axes in by_dim))
            states.extend((codes, tuple(chain.from_iterable(nested))) for nested in nestings)
        strided = frozenset(code for code, p in enumerate(placements) if hasattr(p, "split_factor"))
        index = {state: i for i, state in enumerate(states)}
        return cls(shape, placements, dims, tuple(states), choices, index, strided)

    def cuts(self, state: State, dim: int) -> tuple[Cut, ...]:
        """The splits of a dim, outermost first."""
        codes, order = state
        return tuple(
            (getattr(self.placements[codes[axis]], "split_factor", None), self.shape[axis])
            for axis in order
            if self.dims[codes[axis]] == dim
        )


@dataclass(frozen=True)
class Steps:
    """Single steps, sorted by target. `axes` is a bit mask of the axes that a step moves data along.

    A step's size, the bytes of the larger side on the first rank, is `times` that rank's bytes before the step
    (`of_source`) or after it (`of_target`), whichever is more. `even_dim` is the dim that must divide evenly
    for the step to exist, or -1.
    """

    target: np.ndarray
    source: np.ndarray
    kind: np.ndarray
    axes: np.ndarray
    times: np.ndarray
    of_source: np.ndarray
    of_target: np.ndarray
    even_dim: np.ndarray


def all_steps(states: States) -> Steps:
    found: list[_Found] = []
    changes = _all_changes(states)
    equal = [
        pair
        for pair in combinations(range(len(states.shape)), 2)
        if states.shape[pair[0]] == states.shape[pair[1]] > 1
    ]
    for index, (codes, order) in enumerate(states.all):
        found.extend(_changes_of_one_axis(states, changes, index, codes, order))
        for pair in equal:
            target = _exchanged(states, codes, order, pair)
            if target is not None:
                found.append((target, index, _PERMUTE, 1 << pair[0] | 1 << pair[1], 1, 1, 0, -1))
        found.extend(_reorderings(states, index, codes, order))
    found.sort()
    columns = np.array(found, dtype=np.int32).reshape(-1, 8).T
    return Steps(*(np.ascontiguousarray(column) for column in columns))


def _changes_of_one_axis(
    states: States, changes: "_Changes", index: int, codes: tuple[int, ...], order: tuple[int, ...]
) -> Iterator[_Found]:
    """A new shard always becomes the innermost one of its dim."""
    dims, find = states.dims, states.index.get
    last = {dims[codes[axis]]: axis for axis in order}
    for axis, code in enumerate(codes):
        if dims[code] >= 0 and last[dims[code]] != axis:
            continue
        before, after = codes[:axis], codes[axis + 1 :]
        rest = tuple([a for a in order if a != axis])
        nested_in = [dims[codes[a]] for a in rest]
        for new, kind, mask, times, of_source, of_target in changes[axis][code]:
            nested = rest
            if dims[new] >= 0:
                place = bisect_right(nested_in, dims[new])
                nested = (*rest[:place], axis, *rest[place:])
            target = find(((*before, new, *after), nested))  # none if it would mix reductions
            if target is not None:
                yield target, index, kind, mask, times, of_source, of_target, -1


# For each axis and code: the codes it may become, each with the kind, axes and size of that step.
_Changes = list[list[list[tuple[int, int, int, int, int, int]]]]


def _all_changes(states: States) -> _Changes:
    table: _Changes = []
    for axis, choices in enumerate(states.choices):
        table.append([[] for _ in states.placements])
        for code in choices:
            for new in choices:
                change = _change(states.placements[code], states.placements[new], states.shape[axis])
                if change is not None:
                    mask = 0 if change[0] in (_SLICE, _TO_PARTIAL) else 1 << axis
                    table[axis][code].append((new, change[0], mask, *change[1:]))
    return table


def _change(before: Placement, after: Placement, ranks: int) -> tuple[int, int, int, int] | None:
    """Kind and size of the step that turns one placement into another; None if there is no such step."""
    if before == after:
        return None
    if is_replicate(before):
        return (_SLICE if is_shard(after) else _TO_PARTIAL), 0, 0, 0
    if is_partial(before):
        if is_replicate(after):
            return _ALL_REDUCE, 1, 1, 0
        return (_REDUCE_SCATTER, ranks, 0, 1) if is_shard(after) else None
    if is_replicate(after):
        return _ALL_GATHER, ranks, 1, 0
    return (_ALL_TO_ALL, 1, 1, 1) if is_shard(after) else None


def _exchanged(
    states: States, codes: tuple[int, ...], order: tuple[int, ...], pair: tuple[int, int]
) -> int | None:
    """The layout with the placements of two axes swapped. Strided shards are not swapped."""
    one, other = pair
    if codes[one] == codes[other] and states.dims[codes[one]] < 0:
        return None
    if codes[one] in states.strided or codes[other] in states.strided:
        return None
    changed = list(codes)
    changed[one], changed[other] = codes[other], codes[one]
    swap = {one: other, other: one}
    return states.index[tuple(changed), tuple(swap.get(axis, axis) for axis in order)]


def _reorderings(
    states: States, index: int, codes: tuple[int, ...], order: tuple[int, ...]
) -> Iterator[_Found]:
    """Other nesting orders of a dim with equal shards that is sharded by axes of different sizes."""
    for dim in {states.dims[codes[axis]] for axis in order}:
        axes = [axis for axis in order if states.dims[codes[axis]] == dim]
        if len({states.shape[axis] for axis in axes}) < 2:
            continue
        if any(codes[axis] in states.strided for axis in axes):
            continue
        start = order.index(axes[0])
        stride = _strides(states.shape, axes)
        for nested in permutations(axes):
            after = _strides(states.shape, nested)
            moved = [axis for axis in axes if stride[axis] != after[axis]]
            if len({states.shape[axis] for axis in moved}) > 1:  # else nothing moves, or equal axes do
                target = states.index[codes, (*order[:start], *nested, *order[start + len(axes) :])]
                yield target, index, _PERMUTE, sum(1 << axis for axis in moved), 1, 1, 0, dim


def _strides(shape: tuple[int, ...], axes: Sequence[int]) -> dict[int, int]:
    """The stride of each axis in the sequence of the dim's shards."""
    return {axis: math.prod(shape[a] for a in axes[i + 1 :]) for i, axis in enumerate(axes)}
