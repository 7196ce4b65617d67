"""The optimisation problem: a choice per node, costs on nodes and edges, limited memory at every time.

The format is that of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism. Everything is stored in flat
integer arrays (the choices of node `n` are the slice `choice_start[n] : choice_start[n + 1]`), because problems have up
to 100,000 edges and millions of table entries. Malformed problems are refused here, with the place of the error.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..documents import Field
from ..errors import UsageError
from ..files import path_of, read_document

FORBIDDEN = 10**18
"""Costs of at least this size forbid the choice or the pair of choices."""

_LARGEST_USAGE = 2**62


@dataclass(frozen=True, eq=False)
class Problem:
    """Nodes with choices, edges with tables, half-open live intervals and a memory limit.

    `tables[table_start[e] : table_start[e + 1]]` is row-major over (choice of `edges[e, 0]`, choice of
    `edges[e, 1]`). Use `Problem.build`, `Problem.from_json` or `read_problem`, which validate.
    """

    name: str
    usage_limit: int
    choice_start: np.ndarray
    costs: np.ndarray
    usages: np.ndarray
    intervals: np.ndarray
    edges: np.ndarray
    table_start: np.ndarray
    tables: np.ndarray

    @property
    def nodes(self) -> int:
        return len(self.choice_start) - 1

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"<Problem{name}: {self.nodes} nodes, {len(self.costs)} choices, {len(self.edges)} edges>"

    @classmethod
    def build(
        cls,
        *,
        costs: Sequence[Sequence[float]],
        usages: Sequence[Sequence[float]] | None = None,
        intervals: Sequence[Sequence[int]] | None = None,
        edges: Sequence[Sequence[int]] = (),
        tables: Sequence[Sequence[float]] = (),
        usage_limit: int | None = None,
        name: str = "",
    ) -> "Problem":
        """A validated problem from lists.

        `costs[n][i]` and `usages[n][i]` belong to choice `i` of node `n`; `tables[e]` is row-major over the
        choices of the two nodes of `edges[e]`. Numbers are integers (an infinite cost forbids). Without
        `usage_limit` memory is not limited, and `usages` and `intervals` are optional.
        """
        count = len(costs)
        choice_start, flat_costs = _flatten(costs, "nodes.costs", forbid=True)
        if np.any(np.diff(choice_start) == 0):
            node = int(np.argmin(np.diff(choice_start)))
            raise UsageError(f"nodes.costs[{node}] is empty: every node needs at least one choice.")
        if usages is None:
            usage_start, flat_usages = choice_start, np.zeros_like(flat_costs)
        else:
            _expect_length(usages, count, "nodes.usages", "nodes.costs")
            usage_start, flat_usages = _flatten(usages, "nodes.usages", forbid=False)
        if np.any(np.diff(usage_start) != np.diff(choice_start)):
            node = int(np.argmax(np.diff(usage_start) != np.diff(choice_start)))
            raise UsageError(
                f"nodes.usages[{node}] has {len(usages[node]) if usages else 0} entries but "
                f"nodes.costs[{node}] has {len(costs[node])}: each choice needs a cost and a usage."
            )
        if np.any(flat_usages < 0) or np.any(flat_usages > _LARGEST_USAGE):
            bad = int(np.argmax((flat_usages < 0) | (flat_usages > _LARGEST_USAGE)))
            node = int(np.searchsorted(choice_start, bad, "right")) - 1
            raise UsageError(
                f"nodes.usages[{node}][{bad - int(choice_start[node])}] is {flat_usages[bad]}: "
                "a usage must be between 0 and 2^62."
            )
        return cls(
            name=name,
            usage_limit=_limit(usage_limit),
            choice_start=choice_start,
            costs=flat_costs,
            usages=flat_usages,
            intervals=_intervals(intervals, count),
            edges=_edges(edges, count),
            **_tables(tables, edges, np.diff(choice_start)),
        )

    @classmethod
    def from_json(cls, document: Any) -> "Problem":
        """The problem of a parsed JSON document, in the contest's format."""
        fields = Field(document).object(("problem",))["problem"]
        body = fields.object(("nodes", "edges", "usage_limit"), ("name",))
        nodes = body["nodes"].object(("costs", "usages", "intervals"))
        edges = body["edges"].object(("nodes", "costs"))
        return cls.build(
            costs=_list(nodes["costs"]),
            usages=_list(nodes["usages"]),
            intervals=_list(nodes["intervals"]),
            edges=_list(edges["nodes"]),
            tables=_list(edges["costs"]),
            usage_limit=body["usage_limit"].optional(lambda limit: limit.integer(least=0)),
            name=body["name"].text() if "name" in body else "",
        )

    def to_json(self) -> dict[str, Any]:
        """The document that `from_json` reads."""
        return {
            "problem": {
                "name": self.name,
                "nodes": {
                    "intervals": self.intervals.tolist(),
                    "costs": _lists(self.choice_start, self.costs),
                    "usages": _lists(self.choice_start, self.usages),
                },
                "edges": {
                    "nodes": self.edges.tolist(),
                    "costs": _lists(self.table_start, self.tables),
                },
                "usage_limit": self.usage_limit,
            }
        }


def read_problem(path: str | Path) -> Problem:
    """Read a problem from a `.json` or `.json.gz` file."""
    return read_document(path_of(path), Problem.from_json)


def _lists(start: np.ndarray, flat: np.ndarray) -> list[list[int]]:
    values, bounds = flat.tolist(), start.tolist()
    return [values[bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1)]


def _list(field: Field) -> list[Any]:
    """A list whose items are checked by what is built of them: there may be millions."""
    if not isinstance(field.value, list):
        raise field.expected("a list")
    return field.value


def _expect_length(values: Sequence[Any], count: int, what: str, other: str) -> None:
    if len(values) != count:
        raise UsageError(f"{what} has {len(values)} entries but {other} has {count}: they must agree.")


def _limit(limit: int | None) -> int:
    if limit is None:
        return 2**63 - 1
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 0:
        raise UsageError(f"usage_limit is {limit!r}: it must be an integer of at least 0.")
    return min(int(limit), 2**63 - 1)


def _flatten(rows: Sequence[Sequence[Any]], what: str, *, forbid: bool) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and values of a list of lists of integers."""
    for i, row in enumerate(rows):
        if not isinstance(row, list | tuple | np.ndarray):
            raise UsageError(f"{what}[{i}] is {row!r}: expected a list of numbers.")
    start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=start[1:])
    flat = list(chain.from_iterable(rows))
    if set(map(type, flat)) <= {int} and (not flat or (max(flat) < 2**63 and min(flat) >= -(2**63))):
        values = np.array(flat, np.int64)
    else:
        values = np.array([_integer(value, start, i, what, forbid) for i, value in enumerate(flat)], np.int64)
    if forbid:
        if np.any(values <= -FORBIDDEN):
            raise UsageError(
                f"{_place(start, int(np.argmin(values)), what)} is below -10^18: too small for a cost."
            )
        np.minimum(values, FORBIDDEN, out=values)
    return start, values


def _place(start: np.ndarray, position: int, what: str) -> str:
    row = int(np.searchsorted(start, position, "right")) - 1
    return f"{what}[{row}][{position - int(start[row])}]"


def _integer(value: Any, start: np.ndarray, position: int, what: str, forbid: bool) -> int:
    if isinstance(value, np.generic):
        value = value.item()
    fault = None
    if isinstance(value, bool) or not isinstance(value, int | float):
        fault = "expected a number"
    elif isinstance(value, float) and math.isinf(value) and value > 0 and forbid:
        value = FORBIDDEN
    elif isinstance(value, float) and not value.is_integer():
        fault = "it must be finite" if not math.isfinite(value) else "scale it to an integer"
    if fault is not None:
        raise UsageError(f"{_place(start, position, what)} is {value!r}: {fault}.")
    return max(min(int(value), 2**63 - 1), -(2**63))


def _intervals(intervals: Sequence[Sequence[int]] | None, count: int) -> np.ndarray:
    if intervals is None:
        return np.zeros((count, 2), np.int64)
    _expect_length(intervals, count, "nodes.intervals", "nodes.costs")
    array = _pairs(intervals, "nodes.intervals", "[start, end)")
    if np.any(array[:, 1] < array[:, 0]):
        node = int(np.argmax(array[:, 1] < array[:, 0]))
        raise UsageError(
            f"nodes.intervals[{node}] is {array[node].tolist()}: it ends before it starts; "
            "a half-open interval [start, end) has start <= end."
        )
    return array


def _edges(edges: Sequence[Sequence[int]], count: int) -> np.ndarray:
    array = _pairs(edges, "edges.nodes", "two nodes")
    outside = (array < 0) | (array >= count)
    if np.any(outside):
        edge, side = (int(i) for i in np.argwhere(outside)[0])
        raise UsageError(f"edges.nodes[{edge}] has node {array[edge, side]}: the nodes are 0 to {count - 1}.")
    return array


def _pairs(rows: Iterable[Any], what: str, expected: str) -> np.ndarray:
    rows = list(rows)
    for i, row in enumerate(rows):
        if not isinstance(row, list | tuple | np.ndarray) or len(row) != 2:
            raise UsageError(f"{what}[{i}] is {row!r}: expected {expected}.")
    _, flat = _flatten(rows, what, forbid=False)
    return flat.reshape(len(rows), 2)


def _tables(
    tables: Sequence[Sequence[float]], edges: Sequence[Sequence[int]], choices: np.ndarray
) -> dict[str, np.ndarray]:
    _expect_length(tables, len(edges), "edges.costs", "edges.nodes")
    start, flat = _flatten(tables, "edges.costs", forbid=True)
    ends = np.array(edges, np.int64).reshape(len(edges), 2)
    expected = choices[ends[:, 0]] * choices[ends[:, 1]]
    if np.any(np.diff(start) != expected):
        e = int(np.argmax(np.diff(start) != expected))
        a, b = ends[e]
        raise UsageError(
            f"edges.costs[{e}] has {start[e + 1] - start[e]} entries: nodes {a} and {b} have "
            f"{choices[a]} and {choices[b]} choices, so the table must have {expected[e]}."
        )
    return {"table_start": start, "tables": flat}
