"""The rates of links at calls for which the problem bounds best: what makes the plans that were found so far slow.

For given rates every plan counts a sum that is linear in them (`_weights`), and no step takes less than the least of
these sums. So rates are looked for at which the least over the plans that were found is largest, by a linear program;
the problem with these rates gives a bound and one more plan. The best ones are extreme and far apart from one round to
the next: of all for which the plans count enough, those nearest to the rates with the best bound so far are tried.
Where bounds stay far below what plans count, plans near the best do for that, which are found sooner; and fast plans
are not those that count least: they are also looked for by rates by which links count a little less than calls
everywhere, which leaves links some time. Rates are the same at corresponding calls of equal layers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Input, Node, Output
from ..redistribution import Step, least_seconds
from ..solver import CAN_PROVE, Row, maximum
from ._chains import ChainAt, Chains
from ._schedule import Compute, Move, Schedule, Value
from ._weights import BESIDE, PARTS, Weights, links_of
from ._windows import Window, Windows

if TYPE_CHECKING:
    from ._plan import Plan

# Whether a window is beside calls, and the kinds of calls and of places between calls that it has.
Places = tuple[bool, tuple[int, ...], tuple[int, ...]]


_ROUNDS = 30
_LEVEL = 0.5  # of the way from the bound to what the plans count at least at most: what is enough
_FAR = 0.08  # how far apart these are where rounds look for plans that are near enough the best
_NEAR = 0.05  # and how near these are: a gap of their search
_EVEN = 0.45  # of a second, what links count together where plans are looked for, rather than bounds
_ROUGH = 0.01  # gap of a search for those
_SAFE = 1e-5  # by what part rates are lower than the linear program's, whose rows hold but for rounding


class Rates:
    """The plans that were found so far, and the rates that follow from them."""

    def __init__(self, windows: Windows, links: tuple[str, ...]) -> None:
        self.windows, self.links, self.chains = windows, links, Chains(windows)
        self.count = len(set(links))
        self.used = links_of(links)  # the mask of links by that of axes
        self.kinds, self.gaps = (int(kinds.max(initial=-1)) + 1 for kinds in (windows.kind, windows.gap))
        self._places: dict[Window, Places] = {}
        self.plans: list[_Counted] = []
        # Those with the largest bound.
        self.center, self.bound = Weights.even(self.chains, links, BESIDE), 0.0
        self.near = 0.0  # the gap of the search that found it

    def add(self, plan: "Plan", weights: Weights | None, near: float = 0.0) -> None:
        """A plan that was found, and the rates that it was found and bounded with, to within a gap."""
        self.plans.append(_Counted.of(self, plan))
        if weights is not None and plan.bound is not None and plan.bound > self.bound:
            self.bound, self.center, self.near = plan.bound, weights, near

    def tried(self, gap: float, over: Callable[[bool], bool]) -> Iterator[tuple[Weights, float]]:
        """The rates to look for a plan with, one after another, and a gap that is small enough; each plan is added
        before the next. Rounds end when the bound is as near as the gap to what rates of this kind can reach, or when
        their time is `over`, of which there is less while it is far from that."""
        yield self.center, gap
        limit = self.bound
        for _ in range(_ROUNDS if CAN_PROVE else 0):
            _, limit = self.best()
            if self.bound >= limit * (1 - gap) or over(self._is_far(limit)):
                break
            enough = self.bound + _LEVEL * (limit - self.bound)
            yield self._nearest(enough), max(gap, _NEAR) if gap and self._is_far(limit) else gap
        if self._is_far(limit):
            yield Weights.even(self.chains, self.links, _EVEN), gap and max(gap, _ROUGH)
        if self.near > gap:
            yield self.center, gap

    def _is_far(self, limit: float) -> bool:
        return self.bound < limit * (1 - _FAR)

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
            gaps = np.unique(self.windows.gap[window.gaps])
            calls = np.unique(self.windows.kind[window.calls]) if window.beside else gaps[:0]
            self._places[window] = window.beside, tuple(calls.tolist()), tuple(gaps.tolist())
        return self._places[window]


@dataclass(frozen=True)
class _Counted:
    """Seconds of a plan: those that always count, of calls by kind, and of collectives by window, mask of links and the
    kinds of chains that they are part of. Only kinds that are `tight` matter: they use several links, and take longer
    than the calls of their windows."""

    always: float
    calls: np.ndarray
    moves: Mapping[tuple[Places, int, tuple[int, ...]], float]
    tight: frozenset[int]

    @classmethod
    def of(cls, rates: Rates, plan: "Plan") -> "_Counted":
        calls = np.zeros(rates.kinds)
        moves: Counter[tuple[Places, int, tuple[int, ...]]] = Counter()
        taken = np.zeros(rates.windows.end)
        chained: dict[ChainAt, Counter[int]] = {}  # seconds of each by mask of links
        schedule, cost = plan.schedule, plan.cost
        always = cost.update
        windows = dict(_windows(rates.chains, schedule))
        for entry, seconds in zip(schedule.entries, cost.entries, strict=True):
            if isinstance(entry, Compute):
                if entry.node.facts.view:
                    always += seconds
                else:
                    taken[rates.windows.at[entry.node.name]] += seconds
            elif isinstance(entry, Move):
                window, bucketed, chains = windows[entry.target]
                kinds = tuple(sorted({kind for kind, _ in chains}))
                for step in entry.change.collectives:
                    used = rates.used[sum(1 << axis for axis in step.axes)]
                    own = least(plan, entry, step) if bucketed else step.seconds
                    moves[rates.places(window), used, kinds] += own  # type: ignore[assignment]
                    for chain in chains:
                        chained.setdefault(chain, Counter())[used] += own  # type: ignore[assignment]
        np.add.at(calls, rates.windows.kind, taken)
        tight = (
            kind
            for (kind, window), used in chained.items()
            if len(used) > 1 and sum(used.values()) > taken[window.calls].sum()
        )
        return cls(always, calls, moves, frozenset(tight))


def least(plan: "Plan", move: Move, step: Step) -> float:
    """The seconds that a collective adds to a step at least: its own, or its share of a bucket."""
    if len(step.axes) > 1:
        return step.seconds
    (axis,), itemsize = step.axes, plan.graph.tensor(move.source.ref).dtype.itemsize
    link, ranks = plan.cluster.link(plan.mesh, axis), plan.mesh.shape[axis]
    return float(least_seconds(link, step.kind, np.array([float(step.size)]), ranks, itemsize)[0])


def _windows(
    chains: Chains, schedule: Schedule
) -> Iterator[tuple[Value, tuple[Window, bool, tuple[ChainAt, ...]]]]:
    """The target of each move of a schedule, with its window, whether its collectives may be joined with others, and
    the chains that they are part of."""
    windows, graph = chains.windows, chains.windows.graph
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
        ref, nodes = (
            move.source.ref,
            [each for each in reversed(reached[move.target]) if isinstance(each, Node)],
        )
        if nodes:
            users = [node for node in nodes if node.phase == nodes[0].phase]
            given = isinstance(graph[graph.base(ref).name], Input)
            yield move.target, (windows.of_uses(ref, users), given, chains.of(ref, users))
        else:
            (output,) = (each for each in reached[move.target][:1] if isinstance(each, Output))
            yield move.target, (windows.of_output(output), output.role == "gradient", ())


class _Program:
    """The linear program: a column for each rate, of links and of chains, for what each kind of call and each window
    counts, and the least."""

    def __init__(self, rates: Rates, plans: "Sequence[_Counted]") -> None:
        self.of, self.plans = rates, plans
        kinds, gaps, links = rates.kinds, rates.gaps, rates.count
        self.between = kinds * links
        column = self.between + gaps * links
        # Of each kind of chain the columns of its rates, by kind of call and of place between calls.
        self.along: dict[int, tuple[dict[int, int], dict[int, int]]] = {}
        for chain in sorted(set[int]().union(*(plan.tight for plan in plans))):
            columns: tuple[dict[int, int], dict[int, int]] = {}, {}
            for by_place, places in zip(columns, rates.chains.places(chain), strict=True):
                for place in sorted(places):
                    by_place[place] = column
                    column += 1
            self.along[chain] = columns
        self.factors = column
        self.first = self.factors + kinds
        sets = dict.fromkeys(self._set(key) for plan in plans for key in plan.moves)
        self.sets = {key: self.first + number for number, key in enumerate(sets)}
        self.total = self.first + len(sets)

    def _set(self, key: tuple[Places, int, tuple[int, ...]]) -> tuple[Places, int, tuple[int, ...]]:
        """What counts alike: of the chains only those that have rates."""
        places, used, chains = key
        return places, used, tuple(chain for chain in chains if chain in self.along)

    def parts(self) -> tuple[np.ndarray, list[Row], list[float], np.ndarray]:
        rows, limits = list[Row](), list[float]()

        def add(terms: Sequence[tuple[int, float]], limit: float) -> None:
            rows.append(([column for column, _ in terms], [factor for _, factor in terms]))
            limits.append(limit)

        rates, links = self.of, range(self.of.count)
        chained_calls, chained_gaps = self._chained()
        for kind in range(rates.kinds):
            own = [(self._call(link, kind), 1.0) for link in links]
            add([(self.factors + kind, 1 - BESIDE), *own, *_terms(chained_calls.get(kind, {}))], 1.0)
        for gap in range(rates.gaps):
            add([*((self._gap(link, gap), 1.0) for link in links), *_terms(chained_gaps.get(gap, {}))], 1.0)
        for ((beside, calls, gaps), used, chains), column in self.sets.items():
            own_links = [link for link in links if used >> link & 1]
            for kind in calls:
                mine = _there(self.along[chain][0].get(kind) for chain in chains)
                own_columns = [*(self._call(link, kind) for link in own_links), *mine]
                add([(column, 1.0), *((each, -1.0) for each in own_columns)], 0.0)
            for gap in gaps:
                mine = _there(self.along[chain][1].get(gap) for chain in chains)
                if beside:
                    own_columns = [*(self._gap(link, gap) for link in own_links), *mine]
                    add([(column, 1.0), *((each, -1.0) for each in own_columns)], 0.0)
                else:
                    others = {self._gap(link, gap): 1 for link in links if link not in own_links}
                    others |= chained_gaps.get(gap, {})
                    others |= {each: others[each] - 1 for each in mine}
                    add([(column, 1.0), *_terms(others)], 1.0)
        for plan in self.plans:
            counted = {self.total: 1.0}
            counted |= {self.factors + int(kind): -plan.calls[kind] for kind in np.flatnonzero(plan.calls)}
            for key, seconds in plan.moves.items():
                column = self.sets[self._set(key)]
                counted[column] = counted.get(column, 0.0) - seconds
            add(list(counted.items()), plan.always)
        upper, objective = np.ones(self.total + 1), np.zeros(self.total + 1)
        upper[self.total], objective[self.total] = np.inf, 1.0
        return objective, rows, limits, upper

    def _chained(self) -> tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]]:
        """By kind of call, and of place between calls, the columns of chains there, and how many there are at once."""
        found: tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]] = {}, {}
        for chain, parts in self.along.items():
            for by_place, columns, most in zip(found, parts, self.of.chains.places(chain), strict=True):
                for place, column in columns.items():
                    by_place.setdefault(place, {})[column] = most[place]
        return found

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
        upper[:count] = (1 - others).clip(0.0)
        objective = np.concatenate([-np.ones(count), np.zeros(len(upper) - count), -np.ones(count)])
        found = maximum(objective, apart, [-enough, *limits], np.append(upper, others))
        found[:count] += others - found[len(upper) :]
        return self.rates(found[: len(upper)])

    def _columns(self, weights: Weights) -> np.ndarray:
        """The columns of rates."""
        calls, between = (np.zeros((self.of.count, n)) for n in (self.of.kinds, self.of.gaps))
        windows, along = self.of.windows, np.zeros(self.factors)
        calls[:, windows.kind], between[:, windows.gap] = weights.calls / PARTS, weights.between / PARTS
        for chain, parts in self.along.items():
            for columns, rates in zip(parts, weights.along.get(chain, ()), strict=False):
                for place, column in columns.items():
                    along[column] = rates[place] / PARTS
        along[: self.between + between.size] = np.concatenate([calls.reshape(-1), between.reshape(-1)])
        return along

    def rates(self, found: np.ndarray) -> Weights:
        parts = np.floor(found[: self.factors].clip(0.0) * PARTS * (1 - _SAFE)).astype(np.int64)
        windows = self.of.windows
        shape, ends = (self.of.count, -1), self.between + self.of.gaps * self.of.count
        calls, between = parts[: self.between].reshape(shape), parts[self.between : ends].reshape(shape)
        along: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for chain, (at_calls, at_gaps) in self.along.items():
            own = along[chain] = np.zeros(self.of.kinds, np.int64), np.zeros(self.of.gaps, np.int64)
            for rates, columns in zip(own, (at_calls, at_gaps), strict=True):
                rates[list(columns)] = parts[list(columns.values())]
        return Weights(self.of.chains, self.of.links, calls[:, windows.kind], between[:, windows.gap], along)

    def _call(self, link: int, kind: int) -> int:
        return link * self.of.kinds + kind

    def _gap(self, link: int, gap: int) -> int:
        return self.between + link * self.of.gaps + gap


def _terms(columns: Mapping[int, int]) -> list[tuple[int, float]]:
    return [(column, float(times)) for column, times in columns.items() if times]


def _there(columns: Iterable[int | None]) -> list[int]:
    return [column for column in columns if column is not None]
