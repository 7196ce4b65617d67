"""What is left of a call for the next axis of a mesh, and which rows hold for that.

Axes are nested from left to right: an axis cuts the pieces that the axes before it leave. So a row on the second axis
is a claim about the call that every rank of the first axis has: its tensors are pieces, arguments that take sizes are
those of the pieces. Where a local form runs something else than the operator, no plain call is left; the form says
which rows still hold.

Few different calls are left by many combinations of rows, so they are numbered: a combination is valid if its rows
lead from call to call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch.distributed.tensor.placement_types import Placement

from ..calls import Call, Shape
from ..errors import UsageError
from ..forms import Held, Operator, Piece, operator_by
from ..mesh import Mesh
from ..placements import AnyShard, Row, is_shard

# The rows that a call has, or None where nothing is known about it.
RowsOf = Callable[[Call], Sequence[Row] | None]
_Shapes = tuple[Shape | None, ...]
_Placed = tuple[Placement | None, ...]


@dataclass(frozen=True)
class _State:
    """The sizes of what is left, the local form that it needs, the pairs of dims of which the first was sharded alone,
    and the arguments whose rows must stay whole."""

    inputs: _Shapes
    outputs: _Shapes
    form: str | None = None
    led: frozenset[int] = frozenset()
    whole: frozenset[str] = frozenset()


class Left:
    """Which of the rows of a call, given by their indices, hold for what rows on earlier axes leave of it.

    `rows_of` gives the rows of a call; without it, or where it knows none, rows are taken to hold for smaller calls.
    """

    def __init__(self, rows: Sequence[Row], mesh: Mesh, call: Call, rows_of: RowsOf | None) -> None:
        self.rows, self.mesh, self.call, self.rows_of = rows, mesh, call, rows_of
        self._keys = [_key(row) for row in rows]
        self._states: list[_State] = []
        self._numbers: dict[_State, int] = {}
        self._allowed: dict[int, np.ndarray] = {}
        self._next: dict[tuple[int, int], np.ndarray] = {}
        self._number(_State(tuple(call.shapes), tuple(call.outputs)))

    def holds(self, chosen: Sequence[int]) -> bool:
        """True if each row holds for what those before it leave."""
        state = 0
        for axis, row in enumerate(chosen):
            if axis and not self._allowed_in(state)[row]:
                return False
            if axis + 1 < len(chosen):
                state = int(self._after(state, axis)[row])
        return True

    def among(self, grid: np.ndarray) -> np.ndarray:
        """The positions of those that hold among many combinations, one a line."""
        kept = np.arange(len(grid))
        states = np.zeros(len(grid), np.int64)
        for axis in range(grid.shape[1]):
            rows = grid[kept, axis]
            if axis:
                allowed = np.zeros(len(kept), bool)
                for state in np.unique(states):
                    here = states == state
                    allowed[here] = self._allowed_in(int(state))[rows[here]]
                kept, states, rows = kept[allowed], states[allowed], rows[allowed]
            if axis + 1 < grid.shape[1]:
                after = np.empty_like(states)
                for state in np.unique(states):
                    here = states == state
                    after[here] = self._after(int(state), axis)[rows[here]]
                states = after
        return kept

    def _number(self, state: _State) -> int:
        if state not in self._numbers:
            self._numbers[state] = len(self._states)
            self._states.append(state)
        return self._numbers[state]

    def _after(self, state: int, axis: int) -> np.ndarray:
        """For each row the number of what it leaves."""
        key = state, self.mesh.shape[axis]
        if key not in self._next:
            before, ranks = self._states[state], key[1]
            self._next[key] = np.array([self._number(self._left_by(before, row, ranks)) for row in self.rows])
        return self._next[key]

    def _left_by(self, state: _State, row: Row, ranks: int) -> _State:
        if ranks == 1:
            return state
        led = {
            number
            for number, ((leader, first), (follower, second)) in enumerate(self._leads)
            if _shards(self._placed(row, leader), first) and not _shards(self._placed(row, follower), second)
        }
        return _State(
            _cut(state.inputs, row.inputs, ranks),
            _cut(state.outputs, row.outputs, ranks),
            row.local or state.form,
            state.led | led,
            state.whole | (set() if row.local is None else set(operator_by(row.local, self.call).rows_whole)),
        )

    def _allowed_in(self, state: int) -> np.ndarray:
        """Which rows hold for what is left."""
        if state not in self._allowed:
            self._allowed[state] = self._judged(self._states[state])
        return self._allowed[state]

    def _judged(self, state: _State) -> np.ndarray:
        known = None
        if self.rows_of is not None and (left := self._call_of(state)) is not None:
            known = self.rows_of(left)
        allowed = np.ones(len(self.rows), bool)
        if known is not None:
            given = set(map(_key, known))
            for number, (row, key) in enumerate(zip(self.rows, self._keys, strict=True)):
                # A rule has no rows for dims of one element; such a row was allowed for shards that are empty.
                allowed[number] = key in given or row.is_replicated or _cuts_ones(row, state)
        for number in state.led:
            follower, dim = self._leads[number][1]
            allowed &= [not _shards(self._placed(row, follower), dim) for row in self.rows]
        for name in state.whole:
            rows = range(len(self.call.shape(name)) - 1)
            allowed &= [not any(_shards(self._placed(row, name), dim) for dim in rows) for row in self.rows]
        return allowed

    def _call_of(self, state: _State) -> Call | None:
        """The plain call that is left; None where there is none, and for the whole call, whose rows these are."""
        if state == self._states[0]:
            return None
        tensors = [
            torch.empty(shape, dtype=t.dtype, device="meta")
            for t, shape in zip(self.call.tensors, state.inputs, strict=True)
            if shape is not None
        ]
        call = self.call.with_tensors(tensors, state.outputs)
        if state.form is None:
            return call
        changes = operator_by(state.form, self.call).changes
        if changes is None:
            return None
        inputs = [_first(whole, left) for whole, left in zip(self.call.shapes, state.inputs, strict=True)]
        outputs = [_first(whole, left) for whole, left in zip(self.call.outputs, state.outputs, strict=True)]
        held = Held(call, [piece for piece in inputs if piece is not None], outputs)
        try:
            return call.with_arguments(**changes(call, held)).with_tensors(tensors, state.outputs)
        except UsageError:  # which sizes the arguments mean is unknown
            return None

    @cached_property
    def _leads(self) -> tuple[tuple[tuple[str, int], tuple[str, int]], ...]:
        forms = {row.local for row in self.rows} - {None}
        operators: list[Operator] = [operator_by(form, self.call) for form in forms if form is not None]
        pairs = (pair for operator in operators for pair in operator.leads)
        return tuple(dict.fromkeys((self._counted(first), self._counted(second)) for first, second in pairs))

    def _counted(self, dim: tuple[str, int]) -> tuple[str, int]:
        """The dim counted from the first one of its tensor, if that is given."""
        name, number = dim
        return (name, number % len(self.call.shape(name))) if self.call.has(name) else dim

    def _placed(self, row: Row, name: str) -> Placement | None:
        """The placement of an argument that is one tensor, if it is given."""
        names = self.call.tensor_names
        return row.inputs[names.index(name)] if name in names else None


def _first(whole: Shape | None, left: Shape | None) -> Piece | None:
    """The piece of the first rank, which is the largest."""
    if whole is None or left is None:
        return None
    return Piece(tuple(whole), left, (0,) * len(whole))


def _key(row: Row) -> tuple[_Placed, _Placed]:
    """What a row says, whichever positions of a dim its shards hold."""
    return tuple(map(_plain, row.inputs)), tuple(map(_plain, row.outputs))


def _plain(placement: Placement | None) -> Placement | tuple[str, int] | None:
    if placement is not None and (is_shard(placement) or isinstance(placement, AnyShard)):
        return "S", placement.dim
    return placement


def _shards(placement: Placement | None, dim: int) -> bool:
    return placement is not None and is_shard(placement) and placement.dim == dim


def _cut(shapes: _Shapes, placed: Sequence[Placement | None], ranks: int) -> _Shapes:
    cut = []
    for shape, placement in zip(shapes, placed, strict=True):
        if shape is not None and placement is not None and is_shard(placement) and placement.dim < len(shape):
            dim = placement.dim
            shape = (*shape[:dim], -(-shape[dim] // ranks), *shape[dim + 1 :])
        cut.append(shape)
    return tuple(cut)


def _cuts_ones(row: Row, state: _State) -> bool:
    """True if a row shards a dim that has one element left, or none."""
    placed = [*zip(row.inputs, state.inputs, strict=True), *zip(row.outputs, state.outputs, strict=True)]
    return any(
        p is not None and shape is not None and is_shard(p) and p.dim < len(shape) and shape[p.dim] <= 1
        for p, shape in placed
    )
