"""Where to cut a chain into the stages of a pipeline: the cut whose simulated step is the shortest.

No step is shorter than any of its paths: what comes before an action, what its rank computes from there on, and what
follows. Each such path is a sum over stages, so the least that any completion of a first part adds to it is found by
dynamic programming over boundaries. After a first cut, made by moving boundaries, cuts are built stage by stage, the
one with the lowest bound first; a complete one is simulated. Once no bound is below the best time, that is the best.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product
from typing import Any

import numpy as np

from ..dtensor import Action
from ..errors import UsageError
from ._stage_times import StageTime

FIELDS = ("forward", "input", "weight", "sends", "returns", "step")
_FORWARD, _INPUT, _WEIGHT, _SENDS, _RETURNS, _STEP = range(6)
_PARTS = {
    "forward": (_FORWARD,),
    "backward": (_INPUT, _WEIGHT),
    "input": (_INPUT,),
    "weight": (_WEIGHT,),
}

# Sums in another order differ by so much: no bound may exceed a time that equals it.
_ROUNDING = 1 - 1e-12


@dataclass(frozen=True)
class Cuts:
    """Boundaries of stages from 0 to the number of parts, the seconds of a step, a bound that no cut is below, and how
    many cuts were simulated."""

    cuts: tuple[int, ...]
    seconds: float
    bound: float
    judged: int


def best_cuts(
    parts: int,
    stages: int,
    cost: Callable[[int, int, int], StageTime | None],
    judge: Callable[[tuple[int, ...]], float],
    micro_batches: int,
    gap: float = 0.0,
    *,
    ranks_of_stages: Sequence[int] | None = None,
    actions: Sequence[Sequence[Action]] | None = None,
    most: int | None = None,
) -> Cuts | None:
    """The best cut of a chain into stages; None if in every cut some stage does not fit.

    `cost(stage, begin, end)` is the time of a stage of these parts, None where it does not fit; `judge` the simulated
    time of a complete cut. Both are called at most once for each argument. The time that is found is at most `gap`
    above the best (as a share of it), unless that takes more than `most` steps: `bound` says what was proven.

    `actions` are those that `judge` simulates: without them bounds hold for any schedule, and more cuts are judged.
    Stages are on ranks of their own unless `ranks_of_stages` says otherwise.

    >>> def cost(stage, begin, end):
    ...     return StageTime(forward=end - begin, input=end - begin, weight=0) if end - begin < 4 else None
    >>> def judge(cuts):
    ...     return 2 * 7 * max(b - a for a, b in zip(cuts, cuts[1:])) + 2 * cuts[-1]
    >>> best_cuts(7, 3, cost, judge, micro_batches=8).cuts
    (0, 1, 4, 7)
    """
    if not 1 <= stages <= parts:
        raise UsageError(f"a chain of {parts} parts cannot be cut into {stages} stages: give 1 to {parts}")
    owners = tuple(range(stages)) if ranks_of_stages is None else tuple(ranks_of_stages)
    paths = _paths_of_any(owners, micro_batches) if actions is None else _paths(actions, owners)
    return _Search(parts, stages, cost, judge, owners, paths).best(gap, most)


# -- paths: coefficients of the times of stages, by the rank in whose order they go, in groups of one kind


def _paths(actions: Sequence[Sequence[Action]], owners: Sequence[int]) -> np.ndarray:
    """Of each kind and rank, a path through a schedule: from the rank's first action or its first backward on, up to
    its last action, or to its last backward and from there through the stages before it."""
    whole = {(a.stage, a.micro_batch) for listed in actions for a in listed if a.kind == "backward"}
    found = np.zeros((4, len(actions), len(owners), len(FIELDS)))
    for rank, listed in enumerate(actions):
        turn = next(place for place, action in enumerate(listed) if action.kind != "forward")
        last = max(place for place, action in enumerate(listed) if action.kind != "weight")
        ends = (len(listed) - 1, False), (last, True)
        for number, (begin, (end, on)) in enumerate((b, e) for b in (0, turn) for e in ends):
            path = found[number, rank]
            _add_before(path, listed[begin], owners, whole)
            for action in listed[begin : end + 1]:
                path[action.stage, _PARTS[action.kind]] += 1
            if on:
                _add_after(path, listed[end].stage, listed[end].micro_batch, owners, whole)
            path[[owner == (owners[0] if on else rank) for owner in owners], _STEP] += 1
    return found


def _paths_of_any(owners: Sequence[int], micro_batches: int) -> np.ndarray:
    """As far as they are the same in every schedule; backward may be split."""
    ranks = max(owners) + 1
    found = np.zeros((2, ranks, len(owners), len(FIELDS)))
    for rank in range(ranks):
        own = [stage for stage, owner in enumerate(owners) if owner == rank]
        for number, on in enumerate((False, True)):
            path = found[number, rank]
            _add_before(path, Action(own[0], "forward", 0), owners, set())
            path[own, _FORWARD] += micro_batches
            path[own, _INPUT] += micro_batches
            if on:
                _add_after(path, own[0], 0, owners, set())
            else:
                path[own, _WEIGHT] += micro_batches
            path[[owner == (owners[0] if on else rank) for owner in owners], _STEP] += 1
    return found


def _add_before(path: np.ndarray, action: Action, owners: Sequence[int], whole: set[tuple[int, int]]) -> None:
    """What a micro-batch goes through before an action."""
    stage, last = action.stage, len(owners) - 1
    reached = stage if action.kind == "forward" else last
    for before in range(reached):
        path[before, _FORWARD] += 1
        path[before, _SENDS] += owners[before] != owners[before + 1]
    if action.kind == "forward":
        return
    path[last, _FORWARD] += 1
    for after in range(last, stage, -1):
        path[after, _back(after, action.micro_batch, whole)] += 1
        path[after - 1, _RETURNS] += owners[after] != owners[after - 1]


def _add_after(
    path: np.ndarray, stage: int, micro_batch: int, owners: Sequence[int], whole: set[tuple[int, int]]
) -> None:
    """What a micro-batch goes through after a stage's backward."""
    for before in range(stage - 1, -1, -1):
        path[before, _RETURNS] += owners[before] != owners[before + 1]
        path[before, _back(before, micro_batch, whole)] += 1
    if (0, micro_batch) not in whole:
        path[0, _WEIGHT] += 1  # follows, sooner or later


def _back(stage: int, micro_batch: int, whole: set[tuple[int, int]]) -> tuple[int, ...]:
    return _PARTS["backward" if (stage, micro_batch) in whole else "input"]


# -- search


class _Search:
    """Best-first search over cuts.

    The bound of the first stages has three parts, of which the highest counts: each path with the least that other
    stages add to it; means of paths over the last ranks, since what these have to do can only be divided; and what
    paths of one kind have in common, with the stage that takes its rank longest.
    """

    def __init__(
        self,
        parts: int,
        stages: int,
        cost: Callable[[int, int, int], StageTime | None],
        judge: Callable[[tuple[int, ...]], float],
        owners: Sequence[int],
        paths: np.ndarray,
    ) -> None:
        self.parts, self.stages, self.cost, self.judge, self.owners = parts, stages, cost, judge, owners
        common = paths.min(axis=1)
        means = [paths[:, rank:].mean(axis=1) for rank in range(1, paths.shape[1])]
        every = [paths.reshape(-1, *paths.shape[2:]), paths.mean(axis=1), *means, common]
        self.sums = np.concatenate(every)  # path, stage, field
        self.kinds = len(common)
        own = paths - common[:, None]
        self.own = own[:, list(owners), range(stages)]  # kind, stage, field
        self._options: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._times: dict[tuple[int, ...], float] = {}
        self._rest: dict[tuple[int, int], tuple[np.ndarray, np.ndarray] | None] = {}

    def best(self, gap: float, most: int | None) -> Cuts | None:
        first = self._near(self._even())
        if first is None:
            return None
        best, order, steps = first, count(), 0
        proven = np.inf
        waiting: list[tuple[Any, ...]] = [(0.0, 0, next(order), *self._nothing)]
        while waiting:
            bound, _, _, cuts, *sums = heapq.heappop(waiting)
            enough = best[0] * (1 - gap)
            if bound >= enough or steps == most:
                proven = min(proven, bound)
                break
            steps += 1
            if len(cuts) == self.stages + 1:
                best = min(best, (self._judged(cuts), cuts))
                continue
            for found, *node in self._longer(cuts, *sums):
                if found < enough:
                    heapq.heappush(waiting, (found, -len(node[0]), next(order), *node))
                else:
                    proven = min(proven, found)
        return Cuts(best[1], best[0], float(min(best[0], proven)), len(self._times))

    @property
    def _nothing(self) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
        return (0,), np.zeros(len(self.sums)), np.zeros((self.kinds, max(self.owners) + 1))

    def _even(self) -> tuple[int, ...] | None:
        """The cut whose stages take about equally long: the least sum of squares."""
        found: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
        for stage in range(self.stages):
            longer: dict[int, tuple[float, tuple[int, ...]]] = {}
            for begin, (squares, cuts) in found.items():
                ends, times = self._stage(stage, begin)
                for end, own in zip(ends.tolist(), times[:, :_SENDS].sum(axis=1).tolist(), strict=True):
                    made = squares + own * own, (*cuts, end)
                    longer[end] = min(longer.get(end, made), made)
            found = longer
        return found[self.parts][1] if found else None

    def _near(self, cuts: tuple[int, ...] | None) -> tuple[float, tuple[int, ...]] | None:
        """The best cut that is reached by moving one boundary by one part as long as this is faster."""
        if cuts is None:
            return None
        best, moved = (self._judged(cuts), cuts), True
        while moved:
            moved = False
            for place, by in product(range(1, self.stages), (-1, 1)):
                near = (*best[1][:place], best[1][place] + by, *best[1][place + 1 :])
                if self._fits(near) and (self._judged(near), near) < best:
                    best, moved = (self._judged(near), near), True
        return best

    def _fits(self, cuts: tuple[int, ...]) -> bool:
        stages = zip(range(self.stages), cuts, cuts[1:], strict=False)
        return all(begin < end and end in self._stage(stage, begin)[0] for stage, begin, end in stages)

    def _judged(self, cuts: tuple[int, ...]) -> float:
        if cuts not in self._times:
            self._times[cuts] = self.judge(cuts)
        return self._times[cuts]

    def _longer(
        self, cuts: tuple[int, ...], sums: np.ndarray, own: np.ndarray
    ) -> Iterator[tuple[float, tuple[int, ...], np.ndarray, np.ndarray]]:
        """Cuts with one stage more, and their bounds."""
        stage, begin = len(cuts) - 1, cuts[-1]
        ends, times = self._stage(stage, begin)
        for end, longer, more in zip(
            ends, times @ self.sums[:, stage].T, times @ self.own[:, stage].T, strict=True
        ):
            rest = self._completed(stage + 1, int(end))
            if rest is None:
                continue
            longer = sums + longer
            mine = own.copy()
            mine[:, self.owners[stage]] += more
            least = longer + rest[0]
            slowest = np.maximum(mine.max(axis=1), rest[1])
            bound = max(least.max(), (least[-self.kinds :] + slowest).max())
            yield float(bound) * _ROUNDING, (*cuts, int(end)), longer, mine

    def _completed(self, stage: int, begin: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The least that stages from here on add to each sum, and the least that the slowest of them takes; None if
        they do not fit."""
        key = stage, begin
        if stage == self.stages:
            return np.zeros(len(self.sums)), np.zeros(self.kinds)
        if key not in self._rest:
            ends, times = self._stage(stage, begin)
            rests = [(place, self._completed(stage + 1, int(end))) for place, end in enumerate(ends)]
            fits = [(place, rest) for place, rest in rests if rest is not None]
            if not fits:
                self._rest[key] = None
            else:
                times = times[[place for place, _ in fits]]
                sums = times @ self.sums[:, stage].T + [rest[0] for _, rest in fits]
                slowest = np.maximum(times @ self.own[:, stage].T, [rest[1] for _, rest in fits])
                self._rest[key] = sums.min(axis=0), slowest.min(axis=0)
        return self._rest[key]

    def _stage(self, stage: int, begin: int) -> tuple[np.ndarray, np.ndarray]:
        """Where a stage may end, and its times."""
        key = stage, begin
        if key not in self._options:
            last = self.parts - (self.stages - stage - 1)
            ends = range(self.parts if stage == self.stages - 1 else begin + 1, last + 1)
            found = [(end, time) for end in ends if (time := self.cost(stage, begin, end)) is not None]
            times = [[getattr(time, name) for name in FIELDS] for _, time in found]
            self._options[key] = (
                np.array([end for end, _ in found], int),
                np.array(times).reshape(-1, len(FIELDS)),
            )
        return self._options[key]
