"""The rates of links at calls for which the problem bounds best: what makes the plans that were found so far slow.

For given rates every plan counts a sum that is linear in them (`_weights`), and no step takes less than the least of
these sums. So rates are looked for at which the least over the plans that were found is largest, by a linear program;
the problem with these rates gives a bound and one more plan. The best ones are extreme and far apart from one round to
the next: of all for which the plans count enough, those nearest to the rates with the best bound so far are tried.
Where bounds stay far below what plans count, fast plans are not those that count least: they are looked for by rates by
which links count a little less than calls everywhere, which leaves links some time. Rates are the same at corresponding
calls of equal layers.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Input, Node, Output
from ..redistribution import Step, least_seconds
from ..solver import CAN_PROVE, Row, maximum
from ._items import pattern
from ._schedule import Compute, Move, Schedule, Value
from ._weights import BESIDE, PARTS, Weights, links_of
from ._windows import Window, Windows

if TYPE_CHECKING:
    from ._plan import Plan

# Whether a window is beside calls, and the kinds of calls and of places between calls that it has.
Places = tuple[bool, tuple[int, ...], tuple[int, ...]]


_ROUNDS = 9
_LEVEL = 0.5  # of the way from the bound to what the plans count at least at most: what is enough
_FAR, _SOON = 0.08, 2  # how far apart these are where rounds end so soon
_EVEN = 0.45  # of a second, what links count together where plans are looked for, rather than bounds
_ROUGH = 0.01  # gap of a search for those


class Rates:
    """The plans that were found so far, and the rates that follow from them."""

    def __init__(self, windows: Windows, links: tuple[str, ...]) -> None:
        self.windows, self.links = windows, links
        self.count = len(set(links))
        self.used = links_of(links)  # the mask of links by that of axes
        kinds: dict[object, int] = {}
        self.kind = np.array([kinds.setdefault(key, len(kinds)) for key in self._keys()], np.int64)
        self.kinds = len(kinds)
        pairs = np.stack([np.append(-1, self.kind), np.append(self.kind, -1)])
        _, self.gap = np.unique(pairs, axis=1, return_inverse=True)
        self.gap = self.gap.reshape(-1)
        self.gaps = int(self.gap.max()) + 1
        self._places: dict[Window, Places] = {}
        self.plans: list[_Counted] = []
        self.center, self.bound = Weights.even(windows, links, BESIDE), 0.0  # those with the largest bound

    def _keys(self) -> Iterator[object]:
        """Equal for corresponding calls of equal layers."""
        seen: Counter[object] = Counter()
        for node in self.windows.calls:
            own = node.module, node.phase, node.op
            yield pattern(node.module), node.phase, node.op, seen[own]
            seen[own] += 1

    def add(self, plan: "Plan", weights: Weights | None) -> None:
        """A plan that was found, and the rates that it was found and bounded with."""
        self.plans.append(_Counted.of(self, plan))
        if weights is not None and plan.bound is not None and plan.bound > self.bound:
            self.bound, self.center = plan.bound, weights

    def tried(self, gap: float) -> Iterator[tuple[Weights, float]]:
        """The rates to look for a plan with, one after another, and a gap that is small enough; each plan is added
        before the next. They end when the bound is as near as the gap to what rates of this kind can reach."""
        yield self.center, gap
        for number in range(1, _ROUNDS if CAN_PROVE else 1):
            best, limit = self.best()
            if self.bound >= limit * (1 - gap):
                return
            if number > _SOON and self.bound < limit * (1 - _FAR):
                even = Weights.even(self.windows, self.links, _EVEN)
                for weights in (even, even.halfway(best)):
                    yield weights, gap and max(gap, _ROUGH)
                return
            yield self._nearest(self.bound + _LEVEL * (limit - self.bound)), gap

    def best(self) -> tuple[Weights, float]:
        """The rates for which the least count of the plans is largest, and that."""
        program = _Program(self, self.plans)
        found = maximum(*program.parts())
        return program.rates(found), float(found[program.total])

    def least(self, number: int) -> float:
        """What a plan, by its number, takes at least, by the rates that are best for it."""
        program = _Program(self, [self.plans[number]])
        return float(maximum(*program.parts())[program.total]) if CAN_PROVE else 0.0

    def _nearest(self, enough: float) -> Weights:
        """Those nearest to the rates with the best bound for which all plans count enough."""
        return _Program(self, self.plans).nearest(self.center, enough)

    def places(self, window: Window) -> Places:
        """The kinds of calls and of places between calls in a window."""
        if window not in self._places:
            gaps = np.unique(self.gap[window.first : window.last + 1])
            calls = np.unique(self.kind[window.first : window.last]) if window.beside else gaps[:0]
            self._places[window] = window.beside, tuple(calls.tolist()), tuple(gaps.tolist())
        return self._places[window]


@dataclass(frozen=True)
class _Counted:
    """Seconds of a plan: those that always count, of calls by kind, and of collectives by window and mask of links."""

    always: float
    calls: np.ndarray
    moves: Mapping[tuple[Places, int], float]

    @classmethod
    def of(cls, rates: Rates, plan: "Plan") -> "_Counted":
        calls = np.zeros(rates.kinds)
        moves: Counter[tuple[Places, int]] = Counter()
        schedule, cost = plan.schedule, plan.cost
        always = cost.update
        windows = {
            target: (window, bucketed) for target, window, bucketed in _windows(rates.windows, schedule)
        }
        for entry, seconds in zip(schedule.entries, cost.entries, strict=True):
            if isinstance(entry, Compute):
                if entry.node.facts.view:
                    always += seconds
                else:
                    calls[rates.kind[rates.windows.at[entry.node.name]]] += seconds
            elif isinstance(entry, Move):
                window, bucketed = windows[entry.target]
                for step in entry.change.collectives:
                    used = rates.used[sum(1 << axis for axis in step.axes)]
                    taken = least(plan, entry, step) if bucketed else step.seconds
                    moves[rates.places(window), used] += taken  # type: ignore[assignment]
        return cls(always, calls, moves)


def least(plan: "Plan", move: Move, step: Step) -> float:
    """The seconds that a collective adds to a step at least: its own, or its share of a bucket."""
    if len(step.axes) > 1:
        return step.seconds
    (axis,), itemsize = step.axes, plan.graph.tensor(move.source.ref).dtype.itemsize
    link, ranks = plan.cluster.link(plan.mesh, axis), plan.mesh.shape[axis]
    return float(least_seconds(link, step.kind, np.array([float(step.size)]), ranks, itemsize)[0])


def _windows(windows: Windows, schedule: Schedule) -> Iterator[tuple[Value, Window, bool]]:
    """The target of each move of a schedule, its window, and whether its collectives may be joined with others."""
    graph = windows.graph
    reached: dict[Value, list[Node | Output]] = {
        value: [output]
        for value, output in zip(schedule.outputs, graph.outputs, strict=True)
        if value is not None
    }
    for entry in reversed(schedule.entries):
        if isinstance(entry, Compute):
            for value in entry.inputs:
                reached.setdefault(value, []).append(entry.node)
        elif isinstance(entry, Move):
            reached.setdefault(entry.source, []).extend(reached.get(entry.target, ()))
    for move in schedule.moves:
        nodes = [each for each in reversed(reached[move.target]) if isinstance(each, Node)]
        if nodes:
            users, given = (
                [node for node in nodes if node.phase == nodes[0].phase],
                graph.base(move.source.ref),
            )
            yield move.target, windows.of_uses(move.source.ref, users), isinstance(graph[given.name], Input)
        else:
            (output,) = (each for each in reached[move.target][:1] if isinstance(each, Output))
            yield move.target, windows.of_output(output), output.role == "gradient"


class _Program:
    """The linear program: a column for each rate, for what each kind of call and each window counts, and the least."""

    def __init__(self, rates: Rates, plans: "Sequence[_Counted]") -> None:
        self.of, self.plans = rates, plans
        kinds, gaps, links = rates.kinds, rates.gaps, rates.count
        self.between = kinds * links
        self.factors = self.between + gaps * links
        self.first = self.factors + kinds
        sets = dict.fromkeys(key for plan in plans for key in plan.moves)
        self.sets = {key: self.first + number for number, key in enumerate(sets)}
        self.total = self.first + len(sets)

    def parts(self) -> tuple[np.ndarray, list[Row], list[float], np.ndarray]:
        rows, limits = list[Row](), list[float]()

        def add(columns: Sequence[int], factors: Sequence[float], limit: float) -> None:
            rows.append((columns, factors))
            limits.append(limit)

        rates, links = self.of, range(self.of.count)
        for kind in range(rates.kinds):
            own = [self._call(link, kind) for link in links]
            add([self.factors + kind, *own], [1 - BESIDE, *[1.0] * len(own)], 1.0)
        for gap in range(rates.gaps):
            add([self._gap(link, gap) for link in links], [1.0] * len(links), 1.0)
        for ((beside, calls, gaps), used), column in self.sets.items():
            own = [link for link in links if used >> link & 1]
            for kind in calls:
                add([column, *(self._call(link, kind) for link in own)], [1.0, *[-1.0] * len(own)], 0.0)
            for gap in gaps:
                if beside:
                    add([column, *(self._gap(link, gap) for link in own)], [1.0, *[-1.0] * len(own)], 0.0)
                else:
                    others = [self._gap(link, gap) for link in links if link not in own]
                    add([column, *others], [1.0] * (1 + len(others)), 1.0)
        for plan in self.plans:
            kinds = np.flatnonzero(plan.calls)
            columns = [self.total, *(self.factors + kinds), *(self.sets[key] for key in plan.moves)]
            add(columns, [1.0, *-plan.calls[kinds], *(-s for s in plan.moves.values())], plan.always)
        upper, objective = np.ones(self.total + 1), np.zeros(self.total + 1)
        upper[self.total], objective[self.total] = np.inf, 1.0
        return objective, rows, limits, upper

    def nearest(self, weights: Weights, enough: float) -> Weights:
        """The rates nearest to others for which all plans count enough: the others with something more or less."""
        objective, rows, limits, upper = self.parts()
        others, count = self._columns(weights), self.factors
        apart: list[Row] = [([self.total], [-1.0])]
        for columns, factors in rows:
            rates = [
                (column, factor) for column, factor in zip(columns, factors, strict=True) if column < count
            ]
            less = [len(upper) + column for column, _ in rates]
            apart.append(([*columns, *less], [*factors, *(-factor for _, factor in rates)]))
            limits[len(apart) - 2] -= sum(factor * others[column] for column, factor in rates)
        upper[:count] = 1 - others
        objective = np.concatenate([-np.ones(count), np.zeros(len(upper) - count), -np.ones(count)])
        found = maximum(objective, apart, [-enough, *limits], np.append(upper, others))
        found[:count] += others - found[len(upper) :]
        return self.rates(found[: len(upper)])

    def _columns(self, weights: Weights) -> np.ndarray:
        """The columns of rates."""
        calls, between = (np.zeros((self.of.count, n)) for n in (self.of.kinds, self.of.gaps))
        calls[:, self.of.kind], between[:, self.of.gap] = weights.calls / PARTS, weights.between / PARTS
        return np.concatenate([calls.reshape(-1), between.reshape(-1)])

    def rates(self, found: np.ndarray) -> Weights:
        shape = self.of.count, -1
        calls = found[: self.between].reshape(shape)
        between = found[self.between : self.factors].reshape(shape)
        calls, between = (np.floor(part * PARTS * (1 - 1e-9)).astype(np.int64) for part in (calls, between))
        return Weights(self.of.windows, self.of.links, calls[:, self.of.kind], between[:, self.of.gap])

    def _call(self, link: int, kind: int) -> int:
        return link * self.of.kinds + kind

    def _gap(self, link: int, gap: int) -> int:
        return self.between + link * self.of.gaps + gap
