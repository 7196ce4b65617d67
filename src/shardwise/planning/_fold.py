"""From items to the solver's problem, layers that are equal sharing their choices.

Items are coloured by what they decide, then, round by round, by the colours of those they are tied to: what has the
same colour after some rounds has the same surroundings. All items of one colour get one node of the problem, whose
costs are theirs added up, so the cost of a solution is exactly that of the plan it stands for. What sharing may lose
is bounded by the problem without it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..solver import FORBIDDEN, Problem, Solution
from ._items import Item, Items, Tie
from ._kinds import UNIT
from ._memory import Memory
from ._preferences import preferences

ROUNDS = 4


@dataclass(frozen=True, eq=False)
class Folded:
    """`node[i]` is the problem's node of item `i`; nodes beyond those carry memory at further times. `preferred` is the
    most that preferences between equal plans add to the cost of one; a step is so many `passes` of the problem."""

    problem: Problem
    node: np.ndarray
    classes: int
    preferred: int = 0
    passes: int = 1

    def bound(self, solution: Solution) -> float | None:
        """The seconds below which no plan of the problem is."""
        if solution.bound is None:
            return None
        return self.passes * max(solution.bound - self.preferred, 0) * UNIT


def fold(
    items: Items,
    memory: int | None,
    *,
    held: Memory | None = None,
    rounds: int = ROUNDS,
    share_layers: bool = True,
    name: str = "",
) -> Folded:
    """The problem of the items, with one node for all that are equal, or one for each.

    Memory is what single choices hold, or what is `held` by those or by pairs of choices, if that is known: pairs are
    closer to what a plan holds, in a larger problem.
    """
    held = held or Memory(items, pairs=False)
    parts, ties = [*items.all, *held.uses], [*items.ties, *held.ties]
    preferred = preferences(parts, items.ties, held)
    colour = _colours(parts, ties, rounds) if share_layers else np.arange(len(parts))
    count = int(colour.max()) + 1 if len(colour) else 0
    first: list[Item] = [parts[i] for i in np.unique(colour, return_index=True)[1]]
    members = np.bincount(colour, minlength=count)
    costs = [_times(item.cost, int(members[c])) for c, item in enumerate(first)]
    for place, units in preferred.of_item.items():
        costs[colour[place]] = _plus(costs[colour[place]], units)
    edges: dict[tuple[int, int], np.ndarray] = {}
    for (a, b, _), (table, times) in _joined(ties, colour).items():
        weighted = _times(table, times)
        if a == b:
            costs[a] = _plus(costs[a], np.diagonal(weighted))
        else:
            edges[a, b] = _plus(edges[a, b], weighted) if (a, b) in edges else weighted
    usages = [np.zeros(len(c), np.int64) for c in costs]
    spans = [(0, 0)] * count
    if memory is not None:
        for c, begin, end, usage in _profiles(parts, held, colour):
            node = c
            if usages[c].any():
                node = len(costs)
                costs.append(np.zeros(len(usage), np.int64))
                usages.append(usage)
                spans.append((begin, end))
                edges[c, node] = np.where(np.eye(len(usage), dtype=bool), 0, FORBIDDEN)
            usages[node], spans[node] = usage, (begin, end)
    problem = _problem(costs, usages, spans, edges, memory, name)
    return Folded(problem, colour[: len(items.all)], count, preferred.most, items.passes)


def _colours(items: Sequence[Item], ties: Sequence[Tie], rounds: int) -> np.ndarray:
    """Equal numbers for items with equal labels and surroundings, numbered in order of appearance."""
    near: list[list[tuple[int, int, int]]] = [[] for _ in items]
    tables: dict[int, int] = {}
    for tie in ties:
        table = tables.setdefault(id(tie.table), len(tables))
        near[tie.a].append((table, 0, tie.b))
        near[tie.b].append((table, 1, tie.a))
    colour = _numbered([(item.label, len(item)) for item in items])
    for _ in range(rounds):
        seen = [
            (own, tuple(sorted((table, side, colour[other]) for table, side, other in around)))
            for own, around in zip(colour, near, strict=True)
        ]
        finer = _numbered(seen)
        if max(finer) == max(colour):
            break
        colour = finer
    return np.array(colour)


def _numbered(keys: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _joined(ties: Sequence[Tie], colour: np.ndarray) -> dict[tuple[int, int, int], tuple[np.ndarray, int]]:
    """The ties between nodes: each table once, with how often it occurs."""
    counts: Counter[tuple[int, int, int]] = Counter()
    tables: dict[tuple[int, int, int], np.ndarray] = {}
    turned: dict[int, np.ndarray] = {}
    for tie in ties:
        a, b, table = int(colour[tie.a]), int(colour[tie.b]), tie.table
        if a > b:
            a, b = b, a
            table = turned.setdefault(id(tie.table), tie.table.T)
        key = a, b, id(table)
        counts[key] += 1
        tables[key] = table
    return {key: (tables[key], times) for key, times in counts.items()}


def _profiles(
    items: Sequence[Item], held: Memory, colour: np.ndarray
) -> Iterator[tuple[int, int, int, np.ndarray]]:
    """What nodes hold: (node, begin, end, bytes by its choice), in points of time that are numbered anew.

    Layer by layer memory grows or shrinks evenly, so of the calls that are equal only the first and the last can be
    where most is held: the points are theirs. What is held at no point of theirs does not count.
    """
    first: dict[int, str] = {}
    last: dict[int, str] = {}
    for item, c in zip(items, colour.tolist(), strict=True):
        if item.kind == "call":
            first.setdefault(c, item.name)
            last[c] = item.name
    points = held.points.of({*first.values(), *last.values()})
    steps: dict[tuple[int, bytes], tuple[np.ndarray, np.ndarray]] = {}
    for place, holdings in held.held.items():
        for holding in holdings:
            begin, end = np.searchsorted(points, (holding.begin, holding.end))
            if begin < end:
                key = int(colour[place]), holding.usage.tobytes()
                usage, change = steps.setdefault(key, (holding.usage, np.zeros(len(points) + 1, np.int64)))
                change[begin] += 1
                change[end] -= 1
    for (c, _), (usage, change) in steps.items():
        for begin, end, height in _intervals(np.cumsum(change)):
            yield c, begin, end, usage * height


def _intervals(heights: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """A staircase as stacked intervals (begin, end, height)."""
    open_: list[tuple[int, int]] = []
    level = 0
    for point in np.flatnonzero(np.diff(heights, prepend=0)).tolist():
        height = int(heights[point])
        if height > level:
            open_.append((point, height - level))
        while level > height:
            begin, thick = open_.pop()
            gone = min(thick, level - height)
            yield begin, point, gone
            if thick > gone:
                open_.append((begin, thick - gone))
            level -= gone
        level = height


def _problem(
    costs: list[np.ndarray],
    usages: list[np.ndarray],
    spans: list[tuple[int, int]],
    edges: dict[tuple[int, int], np.ndarray],
    memory: int | None,
    name: str,
) -> Problem:
    return Problem(
        name=name,
        usage_limit=2**63 - 1 if memory is None else memory,
        choice_start=np.concatenate([[0], np.cumsum([len(c) for c in costs])]).astype(np.int64),
        costs=np.concatenate(costs),
        usages=np.concatenate(usages),
        intervals=np.array(spans, np.int64).reshape(-1, 2),
        edges=np.array(list(edges), np.int64).reshape(-1, 2),
        table_start=np.concatenate([[0], np.cumsum([t.size for t in edges.values()])]).astype(np.int64),
        tables=np.concatenate([np.zeros(0, np.int64), *(t.ravel() for t in edges.values())]),
    )


def _times(cost: np.ndarray, times: int) -> np.ndarray:
    return np.where(cost >= FORBIDDEN, FORBIDDEN, cost * times)


def _plus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.minimum(a + b, FORBIDDEN)
