"""The rows of every node of a graph: from the book, else discovered on the spot, else replication alone.

A node that the book does not know is discovered on a call like its own with small sizes. No row is offered that an
experiment has not confirmed; no operator is unsupported, because every one can be replicated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..calls import Call, small_calls
from ..expansion import Combinations
from ..forms import draws_whole
from ..graph import Graph, Node
from ..mesh import Mesh
from ..placements import Row, is_partial, parse_placement
from ..rules import offered_rows, rows_besides, rows_left
from ._discovered import Discovered

Source = Literal["book", "discovered", "replicated"]


@dataclass(frozen=True)
class Offer:
    """The rows of one call, all replicated first, and where they come from; `note` says why there are no others."""

    rows: tuple[Row, ...]
    source: Source
    note: str = ""


class Offers:
    """The rows of the nodes of one graph, each kind of call looked up once; on a device `alone` there is one row.

    `known` gives the rows of a call from a book, `left` those of what the axes of a mesh leave of one; `discovered` are
    those that experiments find, kept in the folder `cache`.
    """

    def __init__(
        self,
        graph: Graph,
        cache: Path | None = None,
        *,
        alone: bool = False,
        known: Callable[[Call], list[Row] | None] = offered_rows,
        left: Callable[[Call], list[Row] | None] = rows_left,
        discovered: Discovered | None = None,
    ) -> None:
        self.graph = graph
        self.alone = alone
        self.known, self.left = known, left
        self.discovered = discovered or Discovered(cache)
        self._offers: dict[Any, Offer] = {}
        self._combinations: dict[Any, Combinations] = {}
        self._excluded: dict[Any, set[tuple[Row, ...]]] = {}

    def of(self, node: Node) -> Offer:
        call = self.graph.call(node)
        if call.signature not in self._offers:
            self._offers[call.signature] = self._look_up(call)
        return self._offers[call.signature]

    def combinations(self, node: Node, mesh: Mesh) -> Combinations:
        """Which of a node's rows may be chosen together on the axes of a mesh."""
        call, offer = self.graph.call(node), self.of(node)
        key = call.signature, mesh
        if key not in self._combinations:
            left = self.left if offer.source == "book" else None
            excluded = self._excluded.get(call.signature, ())
            self._combinations[key] = Combinations.of(call, offer.rows, mesh, left, excluded)
        return self._combinations[key]

    def exclude(self, call: Call, rows: tuple[Row, ...], *, all_sharded: bool = False) -> None:
        """Do not offer these rows together for such calls any more; with `all_sharded`, none but replication."""
        self._excluded.setdefault(call.signature, set()).add(rows)
        if all_sharded:
            note = "experiments refuted the choices that were made for it"
            self._offers[call.signature] = Offer((_replicated(call),), "replicated", note)
        self._combinations.clear()

    def _look_up(self, call: Call) -> Offer:
        replicated = _replicated(call)
        if self.alone:
            return Offer((replicated,), "book")
        if draws_whole(call):
            return Offer((replicated,), "replicated", "its draws do not follow from positions")
        rows = self.known(call)
        if rows is not None:
            return Offer((replicated, *_useful(rows)), "book")
        if not call.tensors:
            return Offer((replicated,), "replicated", "it makes its result from nothing")
        note, besides = "no small call like it runs", rows_besides(call)
        for small in small_calls(call):
            rows, note = self.discovered.rows(small)
            if rows or (rows is not None and besides):
                return Offer((replicated, *_useful(rows), *besides), "discovered")
            if rows is not None:  # what was refuted at these sizes is not tried at others
                break
        return Offer((replicated,), "replicated", note)


def _replicated(call: Call) -> Row:
    replicate = parse_placement("R")
    outputs = tuple(None if shape is None else replicate for shape in call.outputs)
    return Row((replicate,) * len(call.tensors), outputs)


def _useful(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows worth planning with: partials other than sums are results, never given on."""
    for row in rows:
        if not row.is_replicated and all(not is_partial(p) or p.reduce_op == "sum" for p in row.inputs):
            yield row
