"""One step: axes move along the factors of one operation, between all of its tensors.

For each factor the tensors that carry it are compared: while their axes agree, major to minor, the longest list is
propagated. Conflicts shorten it: with axes that shard another factor of the same tensor, with replicated axes, with
closed dims, with sizes that do not divide. Basic steps drop axes that conflict on any tensor; aggressive ones decide
per tensor, the factor with the larger source first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ..layout import AxisRef, is_prefix, is_strict_prefix
from ..mesh import Mesh
from ._state import Axes, Cell, Op, Projected, State, project, unproject

# Directions are sets: a forward and a backward bit.
NONE, FORWARD, BACKWARD, BOTH = range(4)


@dataclass(frozen=True)
class Move:
    """Axes that were propagated to a tensor along a factor, and the tensors they came from."""

    factor: str
    tensor: int
    axes: Axes
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Refusal:
    """An axis that was not propagated to a tensor, or from it (`own`), along a factor, and the reason."""

    factor: str
    tensor: int
    axis: AxisRef
    reason: str
    own: bool = False


@dataclass
class Notes:
    """The moves and refusals of a step; recorded only for a trace."""

    mesh: Mesh
    moves: list[Move] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def text(self, axes: Axes) -> str:
        return ", ".join(axis.text(self.mesh) for axis in axes)


def step(
    op: Op,
    states: tuple[State, ...],
    directions: tuple[int, ...],
    aggressive: bool,
    notes: Notes | None = None,
) -> list[State | None]:
    """For each tensor its new sharding, or None if it does not change."""
    tensors = [project(s, t, op.sizes) for s, t in zip(states, op.tensors, strict=True)]
    wanted = [
        _agreed(tensors, op.inputs, factor, direction, op, notes)
        for factor, direction in enumerate(directions)
    ]
    if not any(wanted):
        return [None] * len(states)
    spread = _aggressive if aggressive else _basic
    updated = spread(op, tensors, wanted, notes)
    changed: list[State | None] = []
    for index, (state, tensor, update) in enumerate(zip(states, tensors, updated, strict=True)):
        new = unproject(tensor, op.tensors[index], op.sizes, state) if update else state
        changed.append(None if new == state else new)
        if notes is not None and update and new.axes == state.axes:
            reason = "a more significant factor of the dim is not fully sharded"
            moves = [move for move in notes.moves if move.tensor == index]
            notes.refusals += [Refusal(move.factor, index, move.axes[-1], reason) for move in moves]
    return changed


def _agreed(
    tensors: list[Projected], inputs: int, factor: int, direction: int, op: Op, notes: Notes | None
) -> Axes:
    """The axes on which the tensors agree for a factor. Tensors against the direction can shorten them, not extend."""
    if direction == NONE:
        return ()
    order = list(enumerate(tensors))
    if direction == BACKWARD:
        order = order[inputs:] + order[:inputs]
    last_leading = (
        len(tensors) if direction == BOTH else (inputs if direction == FORWARD else len(tensors) - inputs)
    )
    axes: Axes = ()
    extend = True
    for position, (index, tensor) in enumerate(order):
        extend = extend and position < last_leading
        cell = tensor.cells.get(factor)
        if cell is not None and cell.axes != axes:
            before, could = axes, extend
            axes, extend = _common(axes, cell.axes, extend)
            if notes is not None and could and not extend and is_strict_prefix(axes, cell.axes):
                lost = cell.axes[min(len(axes), len(cell.axes) - 1)]
                reason = (
                    f"other tensors have {notes.text(before)} there" if before else "not in this direction"
                )
                notes.refusals.append(Refusal(op.names[factor], index, lost, reason, own=True))
    return axes


def _common(old: Axes, new: Axes, extend: bool) -> tuple[Axes, bool]:
    """The common prefix of two lists, and whether further lists may extend it: not after a conflict."""
    agreed: list[AxisRef] = []
    for position, (a, b) in enumerate(zip(old, new, strict=False)):
        if a == b:
            agreed.append(a)
        elif b.is_prefix_of(a):
            if position + 1 < len(new):
                return (*agreed, b), False
            agreed.append(a)
        elif a.is_prefix_of(b):
            if not extend or position + 1 < len(old):
                return (*agreed, a), False
            agreed.append(b)
        else:
            return tuple(agreed), False
    agreed.extend(old[len(new) :])
    if extend:
        agreed.extend(new[len(old) :])
    return tuple(agreed), extend


def _cut(axes: Axes, allowed: Callable[[AxisRef, int], AxisRef | None]) -> Axes:
    """The axes up to the first that is not allowed in full. `allowed` gets an axis and the shards before it."""
    kept: list[AxisRef] = []
    shards = 1
    for axis in axes:
        part = allowed(axis, shards)
        if part is None:
            break
        kept.append(part)
        if part != axis:
            break
        shards *= axis.size
    return tuple(kept)


def _before_all(axis: AxisRef | None, others: Axes) -> AxisRef | None:
    for other in others:
        if axis is None:
            return None
        axis = axis.before(other)
    return axis


def _clear_of_others(axis: AxisRef | None, tensor: Projected, factor: int) -> AxisRef | None:
    """The prefix of an axis that no other factor of the tensor uses."""
    axis = _before_all(axis, tensor.unmapped)
    for other, cell in tensor.cells.items():
        if other != factor and (cell.axes or cell.overflow):
            axis = _before_all(_before_all(axis, cell.overflow), cell.axes)
    return axis


def _fits(axis: AxisRef, tensor: Projected, cell: Cell, shards: int, size: int) -> AxisRef | None:
    """The prefix of an axis that can shard the factor further after `shards` shards."""
    part = _before_all(axis, tensor.barred)
    if part is None or any(own.contains(part) for own in cell.axes):
        return part
    if not cell.closed and not cell.overflow:
        if cell.minor:
            return part
        # A more significant factor that is fully sharded takes no further axis, not even one of size 1: in the dim it
        # would come before the axes of the factors below.
        if size % shards == 0 and size > shards:
            common = math.gcd(size // shards, part.size)
            if common == part.size:
                return part
            if common > 1:
                return AxisRef(part.name, part.pre, common)
    return cell.axes[-1] if cell.axes and cell.axes[-1].is_prefix_of(part) else None


def _basic(op: Op, tensors: list[Projected], wanted: list[Axes], notes: Notes | None) -> list[bool]:
    """Give each factor the axes that conflict with no tensor of the operation."""
    updated = [False] * len(tensors)
    for factor, candidates in enumerate(wanted):
        axes = _unopposed(op, tensors, factor, candidates, notes)
        for index, tensor in enumerate(tensors):
            cell = tensor.cells.get(factor)
            if cell is not None and is_strict_prefix(cell.axes, axes):
                if notes is not None:
                    notes.moves.append(Move(op.names[factor], index, axes, _sources(tensors, factor, axes)))
                cell.axes = axes
                updated[index] = True
    return updated


def _unopposed(op: Op, tensors: list[Projected], factor: int, axes: Axes, notes: Notes | None) -> Axes:
    def allowed(axis: AxisRef, shards: int) -> AxisRef | None:
        part: AxisRef | None = axis
        for index, tensor in enumerate(tensors):
            part = _clear_of_others(part, tensor, factor)
            cell = tensor.cells.get(factor)
            if part is not None and cell is not None:
                part = _fits(part, tensor, cell, shards, op.sizes[factor])
            if part is None:
                if notes is not None:
                    reason = _why(axis, tensor, factor, op, notes)
                    notes.refusals.append(Refusal(op.names[factor], index, axis, reason))
                return None
        return part

    return _cut(axes, allowed)


def _aggressive(op: Op, tensors: list[Projected], wanted: list[Axes], notes: Notes | None) -> list[bool]:
    """Give each tensor as many of the proposed axes of its factors as possible, outputs first."""
    updated = [False] * len(tensors)
    order = _precedence(op, tensors, wanted)
    sources = (
        [_sources(tensors, factor, axes) for factor, axes in enumerate(wanted)] if notes is not None else []
    )
    for index in [*range(op.inputs, len(tensors)), *range(op.inputs)]:
        tensor = tensors[index]
        for factor in order:
            cell = tensor.cells.get(factor)
            if cell is None:
                continue
            axes = _takeable(tensor, cell, factor, wanted[factor], op.sizes[factor])
            if index < op.inputs and op.elementwise:
                axes = _limited_by_outputs(op, tensors, factor, axes)
            before = cell.axes
            if is_strict_prefix(before, axes):
                cell.axes = axes
                updated[index] = True
            if notes is not None:
                if cell.axes != before:
                    notes.moves.append(Move(op.names[factor], index, axes, sources[factor]))
                if is_strict_prefix(cell.axes, wanted[factor]):
                    lost = wanted[factor][min(len(cell.axes), len(wanted[factor]) - 1)]
                    reason = _why(lost, tensor, factor, op, notes)
                    notes.refusals.append(Refusal(op.names[factor], index, lost, reason))
    return updated


def _takeable(tensor: Projected, cell: Cell, factor: int, axes: Axes, size: int) -> Axes:
    """The axes that the factor of this tensor can have; empty if it has as many already."""
    axes = _cut(axes, lambda axis, shards: _fits(axis, tensor, cell, shards, size))
    if not is_strict_prefix(cell.axes, axes):
        return ()
    return _cut(axes, lambda axis, _: _clear_of_others(axis, tensor, factor))


def _limited_by_outputs(op: Op, tensors: list[Projected], factor: int, axes: Axes) -> Axes:
    """An elementwise op does not propagate axes between inputs that its outputs cannot have."""
    for output in tensors[op.inputs :]:
        cell = output.cells.get(factor)
        if cell is not None and is_strict_prefix(cell.axes, axes):
            axes = cell.axes
    return axes


def _precedence(op: Op, tensors: list[Projected], wanted: list[Axes]) -> list[int]:
    """Factors with proposed axes: larger source tensor first, then (elementwise) more shards, then position."""
    source = {factor: (1, -1) for factor, axes in enumerate(wanted) if axes}
    for index, tensor in enumerate(tensors):
        elements = math.prod(op.sizes[factor] for factor in tensor.cells)
        for factor in source:
            cell = tensor.cells.get(factor)
            if cell is not None and is_prefix(wanted[factor], cell.axes) and -elements < source[factor][0]:
                source[factor] = (-elements, index)

    def key(factor: int) -> tuple[int, int, int, int]:
        elements, index = source[factor]
        shards = math.prod(axis.size for axis in wanted[factor]) if op.elementwise else 0
        return elements, -shards, index, factor

    return sorted(source, key=key)


def _sources(tensors: list[Projected], factor: int, axes: Axes) -> tuple[int, ...]:
    return tuple(
        index
        for index, tensor in enumerate(tensors)
        if (cell := tensor.cells.get(factor)) is not None and axes and is_prefix(axes, cell.axes)
    )


def _why(axis: AxisRef, tensor: Projected, factor: int, op: Op, notes: Notes) -> str:
    """Why an axis cannot shard a factor of a tensor, as text."""
    name = notes.text((axis,))
    if _before_all(axis, tensor.barred) is None:
        return f"{name} is replicated or partial there"
    for other, cell in tensor.cells.items():
        if other != factor and _before_all(axis, (*cell.axes, *cell.overflow)) is None:
            return f"{name} shards factor {op.names[other]} there"
    if _before_all(axis, tensor.unmapped) is None:
        return f"{name} shards a dim without a factor there"
    found = tensor.cells.get(factor)
    if found is not None and found.closed:
        return "the dim is closed"
    if found is not None and found.overflow:
        return f"{notes.text(found.overflow)} does not divide into the factors of the dim"
    if found is not None and found.minor and op.elementwise:
        return "the output cannot have it"
    return f"the size {op.sizes[factor]} of the factor does not allow it"
