"""The sharding of a value while it is propagated, and its projection onto the factors of a rule.

Propagation moves axes along factors, not dims. Projecting a dim assigns its axes, major to minor, to its factors,
major to minor: each factor gets the axes that divide its size (splitting an axis where needed), the last one the rest.
The inverse merges split axes again.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..factors import FactorRule, TensorFactors
from ..layout import AxisRef, DimSharding, Sharding, append_axis, is_prefix
from ..mesh import Mesh

Axes = tuple[AxisRef, ...]


class State(NamedTuple):
    """A sharding as plain tuples, compared and hashed often. `priorities` is None once they no longer matter."""

    axes: tuple[Axes, ...]
    closed: tuple[bool, ...]
    replicated: Axes
    partial: tuple[tuple[AxisRef, str], ...]
    priorities: tuple[int | None, ...] | None

    @classmethod
    def of(cls, sharding: Sharding) -> "State":
        priorities = tuple(dim.priority for dim in sharding.dims)
        return cls(
            tuple(dim.axes for dim in sharding.dims),
            tuple(not dim.open for dim in sharding.dims),
            sharding.replicated,
            sharding.partial,
            priorities if any(p is not None for p in priorities) else None,
        )

    def sharding(self, mesh: Mesh) -> Sharding:
        priorities = self.priorities or (None,) * len(self.axes)
        dims = zip(self.axes, self.closed, priorities, strict=True)
        return Sharding(
            mesh, tuple(DimSharding(a, not c, p) for a, c, p in dims), self.replicated, self.partial
        )


def joined_states(a: State, b: State) -> State | None:
    """The combination of two states; None if they contradict each other."""
    axes: list[Axes] = []
    for first, second, first_closed, second_closed in zip(a.axes, b.axes, a.closed, b.closed, strict=True):
        longer = second if is_prefix(first, second) else first
        if not (is_prefix(first, longer) and is_prefix(second, longer)):
            return None
        if (first_closed and first != longer) or (second_closed and second != longer):
            return None
        axes.append(longer)
    replicated = tuple(dict.fromkeys((*a.replicated, *b.replicated)))
    partial = tuple(dict.fromkeys((*a.partial, *b.partial)))
    named = [*(axis for dim in axes for axis in dim), *replicated, *(axis for axis, _ in partial)]
    if any(x.overlaps(y) or not x.fits_with(y) for i, x in enumerate(named) for y in named[:i]):
        return None
    return State(
        tuple(axes),
        tuple(x or y for x, y in zip(a.closed, b.closed, strict=True)),
        replicated,
        partial,
        _stronger(a.priorities, b.priorities),
    )


def _stronger(
    a: tuple[int | None, ...] | None, b: tuple[int | None, ...] | None
) -> tuple[int | None, ...] | None:
    if a is None or b is None:
        return a or b
    return tuple(y if x is None else x if y is None else min(x, y) for x, y in zip(a, b, strict=True))


@dataclass(frozen=True)
class Op:
    """A rule in the form that steps use: factors are integers, tensors are inputs, then outputs."""

    rule: FactorRule
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    tensors: tuple[tuple[tuple[int, ...], ...], ...]
    inputs: int
    elementwise: bool

    @classmethod
    def of(cls, rule: FactorRule, elementwise: bool) -> "Op":
        return _compiled(rule, elementwise)

    def place(self, tensor: int) -> str:
        return f"input {tensor}" if tensor < self.inputs else f"output {tensor - self.inputs}"


@lru_cache(maxsize=1 << 14)
def _compiled(rule: FactorRule, elementwise: bool) -> Op:
    numbers = {factor.name: number for number, factor in enumerate(rule.factors)}

    def numbered(tensor: TensorFactors) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(numbers[name] for name in names) for names in tensor)

    tensors = [*rule.inputs, *(tensor for tensor in rule.outputs if tensor is not None)]
    return Op(
        rule,
        tuple(numbers),
        tuple(factor.size for factor in rule.factors),
        tuple(numbered(tensor) for tensor in tensors),
        len(rule.inputs),
        elementwise,
    )


@dataclass
class Cell:
    """One factor of one tensor. `overflow` are axes that could not be split along the factors of the dim."""

    axes: Axes
    closed: bool
    minor: bool
    overflow: Axes = ()


@dataclass
class Projected:
    """A tensor's sharding on its factors. `unmapped` are axes of dims without a factor."""

    cells: dict[int, Cell]
    barred: Axes
    unmapped: Axes


def project(state: State, tensor: tuple[tuple[int, ...], ...], sizes: tuple[int, ...]) -> Projected:
    cells: dict[int, Cell] = {}
    unmapped: list[AxisRef] = []
    for factors, axes, closed in zip(tensor, state.axes, state.closed, strict=True):
        if len(factors) == 1:
            cells[factors[0]] = Cell(axes, closed, minor=True)
        elif factors:
            _project_dim(factors, axes, closed, sizes, cells)
        else:
            unmapped.extend(axes)
    barred = (*state.replicated, *(axis for axis, _ in state.partial))
    return Projected(cells, barred, tuple(unmapped))


def _project_dim(
    factors: tuple[int, ...], axes: Axes, closed: bool, sizes: tuple[int, ...], cells: dict[int, Cell]
) -> None:
    pending = list(reversed(axes))
    for factor in factors[:-1]:
        taken: list[AxisRef] = []
        left = sizes[factor]
        while pending:
            axis = pending[-1]
            common = math.gcd(left, axis.size)
            if common == 1 and axis.size > 1:
                break
            pending.pop()
            if common < axis.size:
                pending.append(AxisRef(axis.name, axis.pre * common, axis.size // common))
            taken.append(AxisRef(axis.name, axis.pre, common))
            left //= common
        cells[factor] = Cell(tuple(taken), closed, minor=False)
        if left > 1 and pending:
            cells[factor].overflow = tuple(reversed(pending))
            # Factors below an overflow cannot be sharded: the next one is empty and closed, those
            # after it are treated as if the tensor did not carry them.
            following = factors[factors.index(factor) + 1]
            cells[following] = Cell((), True, minor=following == factors[-1])
            return
    cells[factors[-1]] = Cell(tuple(reversed(pending)), closed, minor=True)


def unproject(
    projected: Projected, tensor: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], old: State
) -> State:
    """The sharding of the dims; axes on a factor below one that is not fully sharded are dropped."""
    dims: list[Axes] = []
    closed: list[bool] = []
    for position, factors in enumerate(tensor):
        if not factors:
            dims.append(old.axes[position])
            closed.append(old.closed[position])
            continue
        axes: list[AxisRef] = []
        is_closed = False
        for factor in factors:
            cell = projected.cells[factor]
            is_closed = is_closed or cell.closed
            _append_all(axes, cell.axes)
            if cell.overflow:
                _append_all(axes, cell.overflow)
                break
            if math.prod(axis.size for axis in cell.axes) < sizes[factor]:
                break
        dims.append(tuple(axes))
        closed.append(is_closed)
    return State(tuple(dims), tuple(closed), old.replicated, old.partial, None)


def _append_all(axes: list[AxisRef], more: Axes) -> None:
    for position, axis in enumerate(more):
        if position == 0:
            append_axis(axes, axis)
        else:
            axes.append(axis)
