"""The choices of a node: every valid combination of one row per mesh axis, as arrays over the choices.

Layouts are numbered once per mesh. A choice gives every tensor of the call a layout, so it is a tuple of numbers;
tables between nodes are indexed by them, and kinds of calls that occur often are worked out once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from torch.distributed.tensor.placement_types import Placement

from ..calls import Shape
from ..expansion import Combinations
from ..forms import is_communicating
from ..graph import TensorInfo
from ..layout import Layout
from ..mesh import Mesh
from ..placements import Row, is_partial, is_replicate, parse_placement, shard

ABSENT = -1  # in the place of a layout's number: a tensor that is not there, or that is not used


class Layouts:
    """The layouts of one mesh by number, and the sizes of what the first rank, which holds most, has of a tensor."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.all: list[Layout] = []
        self._numbers: dict[tuple[Placement, ...], int] = {}
        self._local: dict[tuple[int, Shape], Shape] = {}
        self._same: dict[tuple[int, int], bool] = {}
        self._of: dict[int, tuple[int, Layout]] = {}  # by identity: most tensors have one of few layouts
        self.replicated = self.number((parse_placement("R"),) * mesh.ndim)

    def number(self, placements: tuple[Placement, ...]) -> int:
        """The number of a layout."""
        if placements not in self._numbers:
            self._numbers[placements] = len(self.all)
            self.all.append(Layout(self.mesh, placements))
        return self._numbers[placements]

    def of(self, layout: Layout) -> int:
        if id(layout) not in self._of:
            self._of[id(layout)] = self.number(layout.to_placements()), layout
        return self._of[id(layout)][0]

    def local_shape(self, number: int, shape: Shape) -> Shape:
        key = number, shape
        if key not in self._local:
            self._local[key] = (0,) if number == ABSENT else self.all[number].local_shape(shape)
        return self._local[key]

    def local(self, number: int, tensor: TensorInfo) -> TensorInfo:
        shape = self.local_shape(number, tensor.shape)
        stride = tensor.stride
        if stride is not None and 0 not in stride:
            stride = None  # a piece is packed; only a repeated dim stays one
        return TensorInfo(shape, tensor.dtype, stride)

    def bytes(self, number: int, tensor: TensorInfo) -> int:
        return int(np.prod(self.local_shape(number, tensor.shape), dtype=np.int64)) * tensor.dtype.itemsize

    def same(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Whether a tensor in each layout is in each other one as it lies: a replicated one is a partial one too."""
        (sources, rows), (targets, columns) = (
            np.unique(each, return_inverse=True) for each in (source, target)
        )
        same = [[self._is_same(s, t) for t in targets.tolist()] for s in sources.tolist()]
        return np.array(same, bool).reshape(len(sources), len(targets))[np.ix_(rows, columns)]

    def _is_same(self, source: int, target: int) -> bool:
        key = source, target
        if ABSENT in key:
            return source == target
        if key not in self._same:
            pairs = zip(self.all[source].placements, self.all[target].placements, strict=True)
            self._same[key] = all(a == b or (is_replicate(a) and is_partial(b)) for a, b in pairs)
        return self._same[key]

    def without_partials(self, shape: Shape) -> list[int]:
        """The layouts that an input or output of the graph may have: replicated or sharded on each axis.

        A dim is not cut into more pieces than it has elements.
        """
        return self._placed(shape, ())

    def with_sums(self, shape: Shape) -> list[int]:
        """The same, and those with sums to be reduced over some axes."""
        return self._placed(shape, (parse_placement("P(sum)"),))

    def _placed(self, shape: Shape, partials: tuple[Placement, ...]) -> list[int]:
        sharded = (shard(dim) for dim, size in enumerate(shape) if size > 1)
        options = [parse_placement("R"), *sharded, *partials]
        found = []
        for chosen in product(*(options if size > 1 else options[:1] for size in self.mesh.shape)):
            layout = self.all[self.number(chosen)]
            if all(layout.shards(dim) <= shape[dim] for dim in layout.sharded_dims):
                found.append(self.number(chosen))
        return found


@dataclass(frozen=True, eq=False)
class Choices:
    """`inputs[i][c]` and `outputs[o][c]` are the numbers of the layouts that choice `c` gives a tensor."""

    per_axis: np.ndarray
    rows: tuple[Row, ...]
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray | None, ...]

    def __len__(self) -> int:
        return len(self.per_axis)

    def rows_of(self, choice: int) -> tuple[Row, ...]:
        return tuple(self.rows[row] for row in self.per_axis[choice])

    @cached_property
    def find(self) -> dict[tuple[int, ...], int]:
        return {tuple(rows): choice for choice, rows in enumerate(self.per_axis.tolist())}


def choices_of(
    combinations: Combinations,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo | None],
    layouts: Layouts,
) -> Choices:
    """All valid combinations of rows for a call, one for each way to lay out its tensors."""
    mesh, rows = layouts.mesh, combinations.rows
    axes = [np.arange(len(rows) if size > 1 else 1) for size in mesh.shape]
    grid = np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], axis=1)
    grid = grid[combinations.among(grid)]
    columns = [_column([row.inputs[i] for row in rows], grid, layouts) for i in range(len(inputs))]
    made = [
        None if info is None else _column([row.outputs[o] for row in rows], grid, layouts)
        for o, info in enumerate(outputs)
    ]
    forms = _talking(rows)[grid].max(
        axis=1, initial=0
    )  # ways to communicate for the same layouts are choices
    kept = _first_of_each([column for column in (*columns, *made, forms) if column is not None])
    return Choices(
        grid[kept],
        rows,
        tuple(column[kept] for column in columns),
        tuple(None if column is None else column[kept] for column in made),
    )


def _talking(rows: Sequence[Row]) -> np.ndarray:
    """A number for the communicating form of each row, 0 for none."""
    numbers: dict[str | None, int] = {None: 0}
    forms = (row.local if is_communicating(row.local) else None for row in rows)
    return np.array([numbers.setdefault(form, len(numbers)) for form in forms])


def _column(placements: Sequence[Placement | None], grid: np.ndarray, layouts: Layouts) -> np.ndarray:
    """The number of the layout that each combination gives one tensor."""
    kinds: dict[Any, int] = {}
    codes = np.array([kinds.setdefault(p, len(kinds)) for p in placements])
    options, size = list(kinds), (len(kinds),) * grid.shape[1]
    different, back = np.unique(np.ravel_multi_index(tuple(codes[grid].T), size), return_inverse=True)
    lines = np.stack(np.unravel_index(different, size), axis=1).tolist()
    return np.array([layouts.number(tuple([options[code] for code in line])) for line in lines])[back]


def _first_of_each(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Positions of the first of every kind, in order."""
    return np.sort(np.unique(np.stack(columns, axis=1), axis=0, return_index=True)[1])
