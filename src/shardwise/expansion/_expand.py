"""From rows for one axis to choices for a whole mesh, and the cheapest of them.

A choice is as good as what it costs to bring the inputs into its layouts. The price of an input depends
on its own layout alone, so the price of a choice is a sum over inputs of numbers from small tables, and
a choice of rows for the first axes is bounded from below by what each input can reach at best from there.
Searching best bound first finds the cheapest choice without looking at most of the product.
"""

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product

import numpy as np
import torch
from torch.distributed.tensor.placement_types import Placement

from ..calls import Call
from ..errors import UsageError
from ..layout import Layout, mixes_partials
from ..mesh import Mesh
from ..placements import Row, is_shard
from ..redistribution import Prices, space_of
from ._choice import Choice, Combinations, Shape
from ._fill import fill
from ._left import RowsOf

# The price of bringing an input from one layout to another, for those who have their own.
PriceFunction = Callable[[Layout, Layout, tuple[int, ...]], float]


class NoChoice(UsageError):
    """No combination of the rows is valid for the call."""


@dataclass(frozen=True)
class Priced:
    """A choice with the seconds of bringing all inputs into its layouts, and the number of placements that differ from
    those the inputs have."""

    choice: Choice
    price: float
    changes: int

    def __str__(self) -> str:
        return str(self.choice)

    def __repr__(self) -> str:
        return f"<Priced {self}: {self.price * 1e6:.1f} us>"


def expand(
    rows: Sequence[Row],
    mesh: Mesh | str,
    inputs: Sequence[Layout | str],
    shapes: Sequence[Shape],
    *,
    outputs: Sequence[Shape | None] | None = None,
    price: Prices | PriceFunction | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
    fixed: Collection[int] = (),
    allow: Callable[[int, Row], bool] | None = None,
    call: Call | None = None,
    rows_of: RowsOf | None = None,
) -> list[Priced]:
    """Every valid choice for a call, with its price: the reference for `cheapest`.

    `inputs` are the layouts the tensors have, `shapes` their shapes; `outputs` the shapes of the outputs,
    without which sizes are judged on the inputs alone. Inputs whose numbers are in `fixed` may not be
    moved, and `allow(axis, row)` may exclude a row on an axis. With the `call` itself, and `rows_of` for the rows of
    smaller ones, a row is taken only where it holds for what earlier axes leave of the call.
    """
    search = _Search(rows, mesh, inputs, shapes, outputs, price, dtypes, fixed, allow, call, rows_of)
    return [search.priced(chosen) for chosen in product(*search.candidates) if search.is_valid(chosen)]


def cheapest(
    rows: Sequence[Row],
    mesh: Mesh | str,
    inputs: Sequence[Layout | str],
    shapes: Sequence[Shape],
    *,
    outputs: Sequence[Shape | None] | None = None,
    price: Prices | PriceFunction | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
    fixed: Collection[int] = (),
    allow: Callable[[int, Row], bool] | None = None,
    accept: Callable[[Choice], bool] | None = None,
    call: Call | None = None,
    rows_of: RowsOf | None = None,
) -> Priced:
    """The valid choice that costs least; arguments as for `expand`, and `accept` may turn any down.

    Of several that cost the same it is the one that changes fewest placements, then the one whose rows come
    first.

    >>> rows = [Row.parse(text) for text in ("S(0), R -> S(0)", "R, S(1) -> S(1)", "S(1), S(0) -> P(sum)")]
    >>> best = cheapest(rows, "dp=2,tp=4", ["S(0), S(1)", "R, S(0)"], [(64, 64), (64, 64)])
    >>> print(best, best.price)
    dp: S(0), R -> S(0); tp: S(1), S(0) -> P(sum) 0.0
    """
    search = _Search(rows, mesh, inputs, shapes, outputs, price, dtypes, fixed, allow, call, rows_of)
    for found in chain(search.unchanged(), search.best_first()):
        if accept is None or accept(found.choice):
            return found
    raise NoChoice(
        f"no combination of the rows on mesh {search.mesh} fits inputs "
        f"{', '.join(f'[{layout}]' for layout in search.layouts)} of shapes {', '.join(map(str, search.shapes))}"
    )


class _Search:
    """What a search needs to know about one call, as arrays."""

    def __init__(
        self,
        rows: Sequence[Row],
        mesh: Mesh | str,
        inputs: Sequence[Layout | str],
        shapes: Sequence[Shape],
        outputs: Sequence[Shape | None] | None,
        price: Prices | PriceFunction | None,
        dtypes: Sequence[torch.dtype] | None,
        fixed: Collection[int],
        allow: Callable[[int, Row], bool] | None,
        call: Call | None,
        rows_of: RowsOf | None,
    ) -> None:
        self.mesh = Mesh.of(mesh)
        self.layouts = [Layout.parse(i, self.mesh) if isinstance(i, str) else i for i in inputs]
        self.shapes = [tuple(shape) for shape in shapes]
        self.output_shapes = [None if s is None else tuple(s) for s in outputs or ()]
        if len(self.layouts) != len(self.shapes):
            raise UsageError(f"{len(self.layouts)} inputs but {len(self.shapes)} shapes were given")
        for layout, shape in zip(self.layouts, self.shapes, strict=True):
            if layout.mesh != self.mesh:
                raise UsageError(f"an input is laid out on mesh {layout.mesh}, the call on {self.mesh}")
            layout.require_fits(shape)
        self.prices = price or Prices()
        self.itemsizes = [dtype.itemsize for dtype in dtypes] if dtypes else [4] * len(self.layouts)
        self.fixed = fixed
        self.placed = [layout.to_placements() for layout in self.layouts]
        self.rows, self.candidates = self._fill_axes(rows, allow)
        # Per input and axis: the placements it has or may get there, which of them each row wants (rows that
        # are not tried there want any), and which it has.
        self.kinds: list[tuple[tuple[Placement, ...], ...]] = []
        self.codes: list[list[list[int]]] = []
        self.own: list[tuple[int, ...]] = []
        for number, placed in enumerate(self.placed):
            known: dict[Placement, int] = {}
            column = [known.setdefault(row.inputs[number], len(known)) for row in self.rows]
            has = [known.setdefault(p, len(known)) for p in placed]
            placements = list(known)
            tried = [
                list(dict.fromkeys((*(column[row] for row in candidates), own)))
                for candidates, own in zip(self.candidates, has, strict=True)
            ]
            code = [{kind: i for i, kind in enumerate(kinds)} for kinds in tried]
            self.kinds.append(tuple(tuple(placements[kind] for kind in kinds) for kinds in tried))
            self.codes.append([[index.get(kind, 0) for kind in column] for index in code])
            self.own.append(tuple(index[kind] for index, kind in zip(code, has, strict=True)))
        self.combinations = Combinations(
            self.rows, self.mesh, self.shapes, self.output_shapes, call=call, rows_of=rows_of
        )

    def _fill_axes(
        self, rows: Sequence[Row], allow: Callable[[int, Row], bool] | None
    ) -> tuple[list[Row], list[list[int]]]:
        """All rows to try, and which of them on each axis.

        A split factor is tried on the axes where an input has it: elsewhere plain shards do as well.
        """
        every = [p for placed in self.placed for p in placed]
        plain = [p for p in every if not hasattr(p, "split_factor")]
        filled = fill(rows, every, inputs=len(self.placed))
        candidates = []
        for axis in range(self.mesh.ndim):
            choice = list(enumerate(filled))
            if len(plain) < len(every):
                present = [*plain, *(placed[axis] for placed in self.placed)]
                usable = set(fill(rows, present, inputs=len(self.placed)))
                choice = [(index, row) for index, row in choice if row in usable]
            candidates.append([index for index, row in choice if allow is None or allow(axis, row)])
        return filled, candidates

    # -- prices

    @cached_property
    def tables(self) -> list[np.ndarray]:
        """Per input the price of every layout that it can get, one array dim per axis."""
        return [self._prices_of(number) for number in range(len(self.layouts))]

    def _prices_of(self, number: int) -> np.ndarray:
        layout, shape, kinds = self.layouts[number], self.shapes[number], self.kinds[number]
        if isinstance(self.prices, Prices):
            wanted = ((axis, p) for axis, ps in enumerate(kinds) for p in ps)
            where = space_of(self.mesh, (*enumerate(layout.placements), *wanted), len(shape))
            prices = self.prices.from_source(where, where.find(layout), shape, self.itemsizes[number])
            indices = where.table(kinds)
            table = np.where(indices < 0, np.inf, prices[indices])
        else:
            table = self._called_prices(layout, shape, kinds, self.prices)
        if number in self.fixed:
            stays = np.full_like(table, np.inf)
            stays[self.own[number]] = 0.0
            table = stays
        return table

    def _called_prices(
        self,
        layout: Layout,
        shape: tuple[int, ...],
        kinds: tuple[tuple[Placement, ...], ...],
        price: PriceFunction,
    ) -> np.ndarray:
        table = np.full([len(ps) for ps in kinds], np.inf)
        for choice in product(*(range(len(ps)) for ps in kinds)):
            placements = tuple(ps[code] for ps, code in zip(kinds, choice, strict=True))
            fits = all(not is_shard(p) or p.dim < len(shape) for p in placements)
            if fits and not mixes_partials(placements):
                table[choice] = price(layout, Layout(self.mesh, placements), shape)
        return table

    def price_of(self, chosen: tuple[int, ...]) -> float:
        total = 0.0
        for codes, table in zip(self.codes, self.tables, strict=True):
            total += float(table[tuple(column[row] for column, row in zip(codes, chosen, strict=True))])
        return total

    @cached_property
    def changed(self) -> list[list[int]]:
        """Per axis, how many inputs each row changes there."""
        changed = [[0] * len(self.rows) for _ in self.mesh.shape]
        for codes, own in zip(self.codes, self.own, strict=True):
            for counts, column, code in zip(changed, codes, own, strict=True):
                for row, wanted in enumerate(column):
                    counts[row] += wanted != code
        return changed

    def priced(self, chosen: tuple[int, ...]) -> Priced:
        changes = sum(self.changed[axis][row] for axis, row in enumerate(chosen))
        return Priced(self._choice(chosen), self.price_of(chosen), changes)

    def _choice(self, chosen: tuple[int, ...]) -> Choice:
        return Choice(self.mesh, tuple(self.rows[row] for row in chosen))

    def is_valid(self, chosen: tuple[int, ...]) -> bool:
        """True if the rows hold together, and the inputs can be brought into their layouts."""
        return self.price_of(chosen) < math.inf and self.combinations.holds(chosen)

    # -- search

    def unchanged(self) -> Iterator[Priced]:
        """The rows that take the inputs as they are, if there are such on every axis: nothing costs less, so
        no price has to be looked up.
        """
        if not isinstance(self.prices, Prices):
            return
        wanted = list(zip(*self.placed, strict=True)) or [()] * self.mesh.ndim
        matches = [
            next((row for row in candidates if self.rows[row].inputs == inputs), None)
            for candidates, inputs in zip(self.candidates, wanted, strict=True)
        ]
        chosen = tuple(row for row in matches if row is not None)
        if len(chosen) == len(matches) and self.combinations.holds(chosen):
            yield Priced(self._choice(chosen), 0.0, 0)

    def best_first(self) -> Iterator[Priced]:
        """All valid choices, cheapest first; of equals the one with fewest changes, then the first rows."""
        bounds = [[level.tolist() for level in _prefix_minima(table)] for table in self.tables]
        heap: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, ())]
        while heap:
            _, changes, chosen = heapq.heappop(heap)
            axis = len(chosen)
            if axis == self.mesh.ndim:
                if self.is_valid(chosen):
                    yield self.priced(chosen)
                continue
            slots = []  # per input, the bounds after one more axis, by its placement there
            for codes, levels in zip(self.codes, bounds, strict=True):
                slot = levels[axis]
                for column, row in zip(codes, chosen, strict=False):
                    slot = slot[column[row]]
                slots.append((codes[axis], slot))
            for row in self.candidates[axis]:
                total = 0.0
                for column, slot in slots:
                    total += slot[column[row]]
                if total < math.inf and self.combinations.holds((*chosen, row)):
                    heapq.heappush(heap, (total, changes + self.changed[axis][row], (*chosen, row)))


def _prefix_minima(table: np.ndarray) -> list[np.ndarray]:
    """The table, and before it what is left of it when trailing axes take their best."""
    minima = [table]
    while minima[0].ndim > 1:
        minima.insert(0, minima[0].min(axis=-1))
    return minima
