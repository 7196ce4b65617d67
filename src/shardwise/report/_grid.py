"""A layout on the terminal: two dims of a tensor as a coloured grid of shards, each with the ranks that hold it.

Shards have their real sizes, so uneven and empty ones are visible. Headings have the colour of the sharding mesh axes.
"""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..errors import UsageError
from ..layout import Layout, Run
from ..placements import is_partial, is_shard

AXIS_COLOURS = ("blue", "dark_orange", "cyan", "magenta", "green", "yellow")
_SHADES = ("grey23", "grey35")
_MOST = 6  # shards drawn along a side


def pieces(layout: Layout, shape: Sequence[int]) -> list[dict[str, Any]]:
    """The part of each rank: for each dim ranges (start, stop), none where it is empty."""
    return [
        {
            "rank": rank,
            "coordinate": dict(zip(layout.mesh.names, layout.mesh.coordinate(rank), strict=True)),
            "shape": list(layout.local_shape(shape, rank)),
            "holds": [[list(run) for run in layout.runs(dim, size, rank)] for dim, size in enumerate(shape)],
        }
        for rank in range(layout.mesh.ranks)
    ]


def picture_of(layout: Layout, shape: Sequence[int], dims: tuple[int, int] | None = None) -> Group:
    """The grid with a line for every axis; by default of the sharded dims, else of the last two."""
    down, across = _drawn(layout, shape, dims)
    held: dict[tuple[tuple[Run, ...], tuple[Run, ...]], list[int]] = {}
    for rank in range(layout.mesh.ranks):
        place = (_runs(layout, shape, down, rank), _runs(layout, shape, across, rank))
        held.setdefault(place, []).append(rank)
    rows, columns = sorted({row for row, _ in held}), sorted({column for _, column in held})
    grid = Table(box=box.SQUARE, show_lines=True, padding=(0, 1))
    grid.add_column(_heading(layout, down, across))
    shown_columns, shown_rows = _some(len(columns)), _some(len(rows))
    for position in shown_columns:
        text = "" if across is None else "…" if position is None else _range(columns[position])
        grid.add_column(Text(text, _colour(layout, across)), justify="center")
    for position in shown_rows:
        if position is None:
            grid.add_row(*["…"] * (len(shown_columns) + 1))
            continue
        cells = [
            Text("…")
            if column is None
            else Text(
                _ranks(held.get((rows[position], columns[column]), [])),
                f"white on {_SHADES[(position + column) % 2]}",
            )
            for column in shown_columns
        ]
        grid.add_row(Text("" if down is None else _range(rows[position]), _colour(layout, down)), *cells)
    return Group(grid, *_said(layout, shape))


def _drawn(
    layout: Layout, shape: Sequence[int], dims: tuple[int, int] | None
) -> tuple[int | None, int | None]:
    if dims is not None:
        for dim in dims:
            if not 0 <= dim < len(shape):
                raise UsageError(f"a tensor of shape {tuple(shape)} has no dim {dim}")
        return dims
    cut = [dim for dim in layout.sharded_dims if dim < len(shape)]
    chosen = sorted(cut[:2])
    for dim in reversed(range(len(shape))):
        if len(chosen) < 2 and dim not in chosen:
            chosen = sorted([*chosen, dim])
    down, across = [*chosen, None, None][:2]
    return down, across


def _runs(layout: Layout, shape: Sequence[int], dim: int | None, rank: int) -> tuple[Run, ...]:
    return () if dim is None else tuple(layout.runs(dim, shape[dim], rank))


def _heading(layout: Layout, down: int | None, across: int | None) -> Text:
    text = Text()
    if down is not None:
        text.append(f"dim {down} ↓", _colour(layout, down))
    if across is not None:
        text.append("  ").append(f"dim {across} →", _colour(layout, across))
    return text


def _colour(layout: Layout, dim: int | None) -> str:
    axes = () if dim is None else layout.axes(dim)
    return f"bold {AXIS_COLOURS[axes[0] % len(AXIS_COLOURS)]}" if axes else "bold"


def _some(count: int) -> list[int | None]:
    """All positions, or the first ones and the last."""
    return list(range(count)) if count <= _MOST else [*range(_MOST - 2), None, count - 1]


def _range(runs: Sequence[Run]) -> str:
    if not runs:
        return "nothing"
    return ", ".join(f"{first}" if stop == first + 1 else f"{first}-{stop - 1}" for first, stop in runs)


def _ranks(ranks: Sequence[int]) -> str:
    return " ".join(map(str, ranks)) if len(ranks) <= 4 else f"{ranks[0]} {ranks[1]} … {ranks[-1]}"


def _said(layout: Layout, shape: Sequence[int]) -> list[Text]:
    lines = []
    for axis, (name, placement) in enumerate(zip(layout.mesh.names, layout.placements, strict=True)):
        line = Text(name, f"bold {AXIS_COLOURS[axis % len(AXIS_COLOURS)]}")
        if is_shard(placement):
            line.append(f" shards dim {placement.dim} into {layout.mesh.shape[axis]}", "default")
        elif is_partial(placement):
            line.append(
                f" is partial: reducing its ranks' values by {placement.reduce_op} gives the tensor",
                "default",
            )
        else:
            line.append(": replicated", "default")
        lines.append(line)
    local = layout.local_shape(shape)
    word = "" if layout.divides(shape) else "at most "
    whole, own = (" x ".join(map(str, s)) or "one number" for s in (shape, local))
    lines.append(Text(f"a rank holds {word}{own} of {whole}; cells list the ranks"))
    return lines
