"""`Choice`: one row per mesh axis for a call, and which rows may be chosen together.

A row is a claim about one axis. What must be true of the rows of all axes together is a list of conditions, each seen
through what every row says about it: its placement of one tensor, the local form that it needs. And each row must hold
for what the rows before it leave of the call (`_left`). Nothing else in Shardwise decides whether rows combine.
"""

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
from torch.distributed.tensor.placement_types import Placement

from ..calls import Call
from ..forms import Held, Piece, depends_on_positions, is_communicating, operator_by
from ..layout import Layout, mixes_partials
from ..mesh import Mesh
from ..placements import Row, is_shard
from ._left import Left, RowsOf

Shape = Sequence[int]
Placed = Sequence[Placement | None]  # of one tensor, by each row
Column = tuple[Placed, tuple[int, ...] | None]  # the same, with the tensor's shape where that is known


@dataclass(frozen=True)
class Choice:
    """One row per mesh axis, and where the rows come from: `book`, `discovered` or `replicated`."""

    mesh: Mesh
    rows: tuple[Row, ...]
    source: str = "book"

    @cached_property
    def input_layouts(self) -> tuple[Layout, ...]:
        columns = zip(*(row.inputs for row in self.rows), strict=True)
        return tuple(Layout(self.mesh, placed) for placed in columns)

    @cached_property
    def output_layouts(self) -> tuple[Layout | None, ...]:
        """None for an output that the call does not return."""
        columns = zip(*(row.outputs for row in self.rows), strict=True)
        return tuple(None if placed[0] is None else Layout(self.mesh, placed) for placed in columns)

    @property
    def local(self) -> str | None:
        """The form that the call needs: that of the first axis that needs one, since two combine only where they
        are the same for the operator."""
        return next((row.local for row in self.rows if row.local is not None), None)

    @cached_property
    def group_axes(self) -> tuple[int, ...]:
        """The axes along which ranks communicate inside of the call, all of these together; none if they do not."""
        return tuple(axis for axis, row in enumerate(self.rows) if is_communicating(row.local))

    def group(self, rank: int) -> list[int]:
        """The ranks that communicate with this one inside of the call, itself among them, in order."""
        place = self.mesh.coordinate(rank)
        along = (
            range(size) if axis in self.group_axes else (place[axis],)
            for axis, size in enumerate(self.mesh.shape)
        )
        return [self.mesh.rank(member) for member in product(*along)]

    def held(self, call: Call, shapes: Sequence[Shape], made: Sequence[Shape | None], rank: int) -> Held:
        """What a rank holds of the tensors of a call, given their shapes and those of its outputs."""
        inputs = [_piece(s, layout, rank) for s, layout in zip(shapes, self.input_layouts, strict=True)]
        outputs = [
            None if s is None or layout is None else _piece(s, layout, rank)
            for s, layout in zip(made, self.output_layouts, strict=True)
        ]
        return Held(call, tuple(inputs), tuple(outputs))

    def __str__(self) -> str:
        return "; ".join(f"{name}: {row}" for name, row in zip(self.mesh.names, self.rows, strict=True))

    def __repr__(self) -> str:
        return f"<Choice {self}>"


def _piece(shape: Shape, layout: Layout, rank: int) -> Piece:
    shape = tuple(shape)
    return Piece(shape, layout.local_shape(shape, rank), layout.offset(shape, rank))


def is_valid(
    choice: Choice, inputs: Sequence[Shape], outputs: Sequence[Shape | None] = (), call: Call | None = None
) -> bool:
    """True if the rows of a choice hold together for a call with tensors of these shapes; with the call itself, by what
    its local forms allow, too.

    >>> mean = Choice(Mesh.parse("dp=2,tp=2"), (Row.parse("S(0) -> P(avg)", "even"),) * 2)
    >>> is_valid(mean, [(8, 3)], [(3,)]), is_valid(mean, [(6, 3)], [(3,)])
    (True, False)
    """
    found = Combinations(choice.rows, choice.mesh, inputs, outputs, call=call)
    return found.holds(range(len(choice.rows)))


def is_valid_for(choice: Choice, call: Call, rows_of: RowsOf | None = None) -> bool:
    """True if the rows of a choice hold together for a call, whose rows `rows_of` gives."""
    return Combinations.of(call, choice.rows, choice.mesh, rows_of).holds(range(len(choice.rows)))


class _Condition:
    """What must be true of several axes together. `says` is what each row says about it, `judge` is given that of the
    row of each axis; what is said is numbered, so that each combination of it is judged once."""

    def __init__(self, says: Sequence[Hashable], judge: Callable[[tuple[Any, ...]], bool]) -> None:
        numbers: dict[Hashable, int] = {}
        self.codes = [numbers.setdefault(said, len(numbers)) for said in says]
        self.said = list(numbers)
        self._judge = judge
        self._known: dict[tuple[int, ...], bool] = {}

    def holds(self, codes: tuple[int, ...]) -> bool:
        known = self._known.get(codes)
        if known is None:
            known = self._known[codes] = self._judge(tuple([self.said[code] for code in codes]))
        return known


class Combinations:
    """Which combinations of rows, one per mesh axis, are valid for a call. Rows are given by their indices.

    `inputs` and `outputs` are the shapes of its tensors, None for an output that it does not return; outputs whose
    shapes are not given are judged by their placements alone. With the `call` itself a row on a later axis must hold
    for what is left of it, by the rows that `rows_of` gives for that and by what local forms allow. What is `excluded`
    is not valid.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        mesh: Mesh,
        inputs: Sequence[Shape],
        outputs: Sequence[Shape | None] = (),
        *,
        call: Call | None = None,
        rows_of: RowsOf | None = None,
        excluded: Collection[tuple[Row, ...]] = (),
    ) -> None:
        self.rows, self.mesh = tuple(rows), mesh
        numbers = {row: number for number, row in enumerate(rows)}
        self.excluded = {
            tuple(numbers[row] for row in each) for each in excluded if all(row in numbers for row in each)
        }
        tensors = [([row.inputs[i] for row in rows], tuple(shape)) for i, shape in enumerate(inputs)]
        made: list[Column] = []
        for o in range(len(rows[0].outputs)):
            shape = outputs[o] if o < len(outputs) else None
            made.append(([row.outputs[o] for row in rows], None if shape is None else tuple(shape)))
        needs = [row.shards for row in rows]
        if set(needs) != {"any"} and _always_divide([*tensors, *made], mesh.ranks):
            needs = ["any"] * len(rows)
        self.conditions = [
            _Condition(_said(placed, needs), partial(_can_lie, mesh, shape))
            for placed, shape in (*tensors, *made)
            if not _always_lies(placed, needs, shape)
        ]
        if {row.local for row in rows} != {None}:
            says = [(row.local, _is_strided(row), _talking(row, call)) for row in rows]
            self.conditions.append(_Condition(says, partial(_has_form, call)))
        self.left = Left(rows, mesh, call, rows_of) if call is not None and mesh.ndim > 1 else None

    @classmethod
    def of(
        cls,
        call: Call,
        rows: Sequence[Row],
        mesh: Mesh,
        rows_of: RowsOf | None = None,
        excluded: Collection[tuple[Row, ...]] = (),
    ) -> "Combinations":
        """Those of the rows of a call; `rows_of` gives the rows of calls that are left of it."""
        return cls(rows, mesh, call.shapes, call.outputs, call=call, rows_of=rows_of, excluded=excluded)

    def holds(self, chosen: Sequence[int]) -> bool:
        """True if a combination is valid; of rows for the first axes alone, if a valid one may begin with them."""
        for condition in self.conditions:
            codes = condition.codes
            if not condition.holds(tuple([codes[row] for row in chosen])):
                return False
        if self.excluded and tuple(chosen) in self.excluded:
            return False
        return self.left is None or self.left.holds(chosen)

    def among(self, grid: np.ndarray) -> np.ndarray:
        """The positions of the valid ones among many combinations, one a line."""
        kept = np.arange(len(grid))
        for condition in self.conditions:
            size = (len(condition.said),) * self.mesh.ndim
            flat = np.ravel_multi_index(tuple(np.array(condition.codes)[grid[kept]].T), size)
            different, back = np.unique(flat, return_inverse=True)
            lines = np.stack(np.unravel_index(different, size), axis=1).tolist()
            kept = kept[np.array([condition.holds(tuple(line)) for line in lines], bool)[back]]
        if self.excluded:
            kept = kept[[tuple(line) not in self.excluded for line in grid[kept].tolist()]]
        return kept if self.left is None else kept[self.left.among(grid[kept])]


def _always_divide(tensors: Sequence[Column], ranks: int) -> bool:
    """True if every dim divides by the whole mesh, so that no row can need more."""
    evenly = all(size and size % ranks == 0 for _, shape in tensors for size in shape or ())
    return evenly and not any(hasattr(p, "split_factor") for placed, _ in tensors for p in placed)


def _always_lies(placed: Placed, needs: Sequence[str], shape: tuple[int, ...] | None) -> bool:
    """True if nothing can be wrong with a tensor, whichever rows are chosen."""
    returned = [placement for placement in placed if placement is not None]
    if mixes_partials(returned) or len(returned) not in (0, len(placed)):
        return False
    return shape is None or not any(
        p is not None and is_shard(p) and (need != "any" or p.dim >= len(shape))
        for p, need in zip(placed, needs, strict=True)
    )


def _said(placed: Sequence[Placement | None], needs: Sequence[str]) -> list[tuple[Placement | None, str]]:
    """What each row says about one tensor: its placement, and the shards that it needs where it shards it."""
    return [
        (p, need if p is not None and is_shard(p) else "any") for p, need in zip(placed, needs, strict=True)
    ]


@lru_cache(maxsize=1 << 16)
def _can_lie(
    mesh: Mesh, shape: tuple[int, ...] | None, said: tuple[tuple[Placement | None, str], ...]
) -> bool:
    """True if a tensor has a layout with these placements on the first axes or all of them, and each dim is cut as the
    rows that shard it need it, by all axes on that dim together."""
    placements = tuple([placement for placement, _ in said if placement is not None])
    if len(placements) < len(said):
        return not placements  # an output is returned on all axes or on none
    if mixes_partials(placements):
        return False
    if shape is None:
        return True
    needs: dict[int, set[str]] = {}
    for placement, (_, need) in zip(placements, said, strict=True):
        if is_shard(placement):
            needs.setdefault(placement.dim, set()).add(need)
    if any(dim >= len(shape) for dim in needs):
        return False
    if all(need == {"any"} for need in needs.values()):
        return True
    if len(placements) < mesh.ndim:
        return all(_may_divide(mesh, placements, dim, shape[dim], need) for dim, need in needs.items())
    layout = Layout(mesh, placements)
    return all(
        ("even" not in need or layout.divides_dim(dim, shape[dim]))
        and ("nonempty" not in need or layout.fills_dim(dim, shape[dim]))
        for dim, need in needs.items()
    )


def _may_divide(
    mesh: Mesh, placements: Sequence[Placement], dim: int, size: int, need: Collection[str]
) -> bool:
    """False if the first axes alone cut a dim finer than their rows allow."""
    pieces = math.prod(mesh.shape[axis] for axis, p in enumerate(placements) if is_shard(p) and p.dim == dim)
    return not ("even" in need and size % pieces) and not ("nonempty" in need and size < pieces)


def _is_strided(row: Row) -> bool:
    return any(hasattr(p, "split_factor") for p in (*row.inputs, *row.outputs))


def _talking(row: Row, call: Call | None) -> Hashable:
    """What must be the same for all axes along which the ranks of a call communicate; None for a row without."""
    if not is_communicating(row.local):
        return None
    assert row.local is not None
    along_any = call is not None and operator_by(row.local, call).along_any
    return row.local if along_any else row


def _has_form(call: Call | None, said: tuple[tuple[str | None, bool, Hashable], ...]) -> bool:
    """True if there is a way to run the call: one form at most, or several that are the same for its operator, on
    pieces that are one range of positions where it needs to know these. Ranks that communicate along several axes do
    so as one group, which a form takes for the ranks of one axis."""
    forms = {form for form, *_ in said if form is not None}
    if len({talking for *_, talking in said if talking is not None}) > 1:
        return False
    if any(map(depends_on_positions, forms)) and any(strided for _, strided, _ in said):
        return False
    if len(forms) < 2:
        return True
    first, *others = forms
    return call is not None and all(operator_by(form, call) == operator_by(first, call) for form in others)
