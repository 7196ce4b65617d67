"""The search for the cheapest plan that fits: the solver proposes, the evaluator of plans decides.

The problem counts no more memory than a plan holds (`_memory`). So where it has no solution under a limit there is no
plan under it either, and its bound under the limit is one for every plan that fits. A solution may still hold more as a
plan than as a solution: then the problem is given smaller limits until its plan fits, and the limits in between are
searched for a cheaper one.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import numpy as np

from ..errors import UsageError, require
from ..progress import Progress
from ..solver import FORBIDDEN, Improvement, Problem, Shortfall, Solution, least_memory, prepare, solve
from ._fold import Folded, fold
from ._items import Items, Restriction
from ._kinds import UNIT
from ._plan import Plan
from ._preferences import SAME, preferred
from ._summary import bytes_text, exact_bytes_text

_FEW = 200  # items up to which the problem may know memory by pairs of choices: it is several times as large
_LIMITS = 8  # that the problem is given before a plan counts as the best that was found
_EXCLUDED = 24  # problems that are solved after excluding choices
_STEPS = 100_000  # of a run: what these could still save is what a search may take
_ROUNDS = 60  # of search for the least memory: with as many, it is the same every time


# The part of the time that is left which one search gets.
_SHARE = 0.8


class Clock:
    """The time of all searches for one plan. Each gets most of what is left, so that the next has some.

    It starts when the solver is compiled, which is done once per installation.
    """

    def __init__(self, seconds: float) -> None:
        require(seconds, (int, float), "time_limit", "a number")
        if not seconds > 0:
            raise UsageError(f"time_limit is {seconds!r}: it must be a positive number of seconds.")
        prepare()
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(self._end - time.monotonic(), 0.01)

    @property
    def share(self) -> float:
        return max(self.left * _SHARE, 0.01)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._end


class DoesNotFit(UsageError):
    """No plan fits. With less than `at_least` bytes none can; with `enough` there is one (None: it is not known).

    Where equal layers share their choices, which the message then says, other plans are left out.
    """

    def __init__(self, message: str, at_least: int, enough: int | None) -> None:
        super().__init__(message)
        self.at_least, self.enough = at_least, enough


class Unsolved(Exception):
    """The problem without a limit on memory has no solution that was found."""

    def __init__(self, solution: Solution) -> None:
        super().__init__(solution.status)
        self.solution = solution


class Search:
    """The problem of some items, with and without a limit on memory, and the plans of its solutions."""

    def __init__(
        self,
        items: Items,
        read: Callable[[Folded, Solution], Plan],
        *,
        memory: int,
        share_layers: bool,
        gap: float,
        clock: Clock,
        progress: Progress,
        timed: Callable[[str, Callable[[], Any]], Any],
        what: str,
        start: Restriction | None = None,
    ) -> None:
        self.items, self.read, self.memory, self.share_layers = items, read, memory, share_layers
        self.gap, self.clock, self.progress, self.timed, self.what = gap, clock, progress, timed, what
        self.start = start
        self.started: Plan | None = None  # the plan from which the search started

    def cheapest(self) -> Plan:
        # Without the limit the problem is easier by far, and often its best plan fits.
        folded = self._fold(None)
        start = None if self.start is None else self._within(folded, self.start)
        solution = self._solve(folded.problem, "searching", start)
        if solution.choices is None:
            raise Unsolved(solution)
        made = self.read(folded, solution)
        return made if made.cost.peak <= self.memory else self._cheapest_that_fits(made.bound)

    def _within(self, folded: Folded, restriction: Restriction) -> list[int] | None:
        """The best choices within a restriction, which are kept as a plan; None if there are none."""
        problem, costs = folded.problem, folded.problem.costs.copy()
        for place, node in enumerate(folded.node.tolist()):
            mask = self.items.left(place, restriction)
            if mask is not None:
                own = slice(problem.choice_start[node], problem.choice_start[node + 1])
                costs[own] = np.where(mask, costs[own], FORBIDDEN)
        solution = self._solve(replace(problem, costs=costs), "proposing")
        if solution.choices is None:
            return None
        self.started = replace(self.read(folded, solution), bound=None)
        return solution.choices

    def _cheapest_that_fits(self, bound: float | None) -> Plan:
        """The cheapest plan that was found to fit; `bound` is that of all plans, whatever they hold."""
        best: Plan | None = None
        last: tuple[Folded, Solution] | None = None
        problems = self._problems()
        for folded in problems:
            solution = self._solve(folded.problem, "searching within memory")
            if solution.status == "infeasible":
                assert solution.shortfall is not None
                raise self._needs(folded, solution.shortfall, problems)
            if (known := folded.bound(solution)) is not None:
                bound = max(bound or 0.0, known)
            if solution.choices is not None:
                last = folded, solution
                best = self._tighten(folded, solution, best, bound or 0.0)
                if best is not None and self._is_close(best, bound or 0.0):
                    break
        if last is None:
            raise DoesNotFit(
                f"no plan of {self.what} that fits in {bytes_text(self.memory)} a device was found in "
                f"{self.clock.seconds:.0f} seconds of search: give it more time or memory",
                0,
                None,
            )
        best = best or self._exclude(*last)
        if best is None:
            folded, _ = last
            lacking = least_memory(folded.problem, time_limit=self.clock.share, max_iterations=_ROUNDS)
            best = self._smallest(folded, lacking)
            if best is None or best.cost.peak > self.memory:
                raise self._needs(folded, lacking, problems)
        return replace(best, bound=bound)

    def _problems(self) -> Iterator[Folded]:
        """The problem under the memory limit: with what single choices hold, which is small and often enough to know,
        then, unless the graph is large, with what pairs of choices hold."""
        yield self._fold(self.memory)
        if len(self.items.all) <= _FEW:
            yield self._fold(self.memory, pairs=True)

    def _is_close(self, made: Plan, bound: float) -> bool:
        return made.cost.seconds * (1 - max(self.gap, SAME)) <= bound

    def _tighten(self, folded: Folded, solution: Solution, best: Plan | None, bound: float) -> Plan | None:
        """The cheapest plan that fits: the best so far, or that of a solution under the limit or a smaller one."""
        limit, fits, misses = self.memory, -1, self.memory + 1
        for _ in range(_LIMITS):
            made = self.read(folded, solution)
            over = made.cost.peak - self.memory
            if over > 0:
                misses = limit
            else:
                fits = limit
                best = made if best is None else preferred(best, made)
            limit = (fits + misses) // 2 if fits >= 0 else limit - over
            close = best is not None and self._is_close(best, bound)
            if close or limit <= max(fits, 0) or self.clock.over:
                break
            tighter = replace(folded.problem, usage_limit=limit)
            solution = self._solve(tighter, "searching within memory")
            if solution.choices is None:
                break
        return best

    def _exclude(self, folded: Folded, solution: Solution) -> Plan | None:
        """A plan that fits, found by excluding choices that decide what plans which do not fit hold at their peak."""
        made = self.read(folded, solution)
        waiting: list[tuple[int, int, frozenset[tuple[int, int]], Solution, Plan]] = []
        heappush(waiting, (made.cost.peak, 0, frozenset(), solution, made))
        tried = 0
        while waiting:
            _, _, excluded, solution, made = heappop(waiting)
            assert solution.choices is not None
            for node in self._at_peak(folded, made):
                if tried == _EXCLUDED or self.clock.over:
                    return None
                tried += 1
                more = excluded | {(node, solution.choices[node])}
                next_ = self._solve(_without(folded.problem, more), "searching within memory")
                if next_.choices is None:
                    continue
                made = self.read(folded, next_)
                if made.cost.peak <= self.memory:
                    return made
                heappush(waiting, (made.cost.peak, tried, more, next_, made))
        return None

    def _at_peak(self, folded: Folded, made: Plan) -> list[int]:
        """The nodes of the problem that decide what a plan holds where it holds most: those of what is read, made or
        kept there."""
        entries, items = made.schedule.entries, self.items
        peak = int(np.argmax(made.cost.held))
        here = {value.ref for value in (*entries[peak].used, *entries[peak].made)}
        before = {value.ref for entry in entries[:peak] for value in (*entry.used, *entry.made)}
        refs = here | before & {value.ref for entry in entries[peak + 1 :] for value in entry.used}
        places = {items.made[ref][0] for ref in refs}
        for ref in refs:
            for group in items.groups.get(ref, ()):
                places |= {items.places["call", node.name] for node in group.users}
                places |= set() if group.copy is None else {group.copy}
        names = {ref.name for ref in refs}
        places |= {items.places["call", copy] for copy, name in items.copies.items() if name in names}
        return sorted({int(folded.node[place]) for place in places})

    def _smallest(self, folded: Folded, lacking: Shortfall) -> Plan | None:
        """The plan that holds least among those of solutions under the smallest limit; None if there is none."""
        if lacking.choices is None or lacking.enough is None:
            return None
        known = Solution("feasible", lacking.choices, None, None, lacking.enough, 0.0)
        cheap = solve(
            replace(folded.problem, usage_limit=lacking.enough),
            time_limit=self.clock.share,
            max_iterations=_ROUNDS,
            gap=self.gap,
        )
        found = [self.read(folded, solution) for solution in (cheap, known) if solution.choices is not None]
        return min(found, key=lambda made: (max(made.cost.peak, self.memory), made.cost.seconds))

    def _needs(self, folded: Folded, lacking: Shortfall, finer: Iterator[Folded]) -> DoesNotFit:
        """The refusal, with what the problem proves to be needed and what a plan shows to be enough."""
        least, smallest = lacking.at_least or 0, self._smallest(folded, lacking)
        for folded in finer:
            if self.clock.over or (smallest is not None and smallest.cost.peak == least):
                break
            lacking = least_memory(
                folded.problem, at_least=least, time_limit=self.clock.share, max_iterations=_ROUNDS
            )
            least = max(least, lacking.at_least or 0)
            found = [plan for plan in (smallest, self._smallest(folded, lacking)) if plan is not None]
            smallest = min(found, key=lambda plan: plan.cost.peak, default=None)
        enough = None if smallest is None else smallest.cost.peak
        if enough is not None and least == enough:
            needs = f"it needs {exact_bytes_text(enough)}"
        else:
            known = [] if least <= self.memory else [f"it needs at least {exact_bytes_text(least)}"]
            known += [] if enough is None else [f"{exact_bytes_text(enough)} is enough"]
            needs = ", and ".join(known)
        verb = "fits" if least > self.memory else "was found that fits"
        shared = " with equal layers sharing their choices" if self.share_layers else ""
        head = f"no plan of {self.what}{shared} {verb} in {bytes_text(self.memory)} a device"
        return DoesNotFit(f"{head}: {needs or 'give it more time or memory'}", least, enough)

    def _fold(self, memory: int | None, *, pairs: bool = False) -> Folded:
        self.progress("pricing")
        name = self.items.graph.name
        return self.timed(
            "problem",
            lambda: fold(self.items, memory, pairs=pairs, share_layers=self.share_layers, name=name),
        )

    def _solve(self, problem: Problem, stage: str, start: list[int] | None = None) -> Solution:
        seconds = self.clock.share

        def note(line: Improvement) -> None:
            known = "" if line.gap is None else f"at most {line.gap:.1%} from the best"
            self.progress(stage, limit=seconds, note=known)

        self.progress(stage, limit=seconds)
        return self.timed(
            "solve",
            lambda: solve(
                problem,
                time_limit=seconds,
                gap=self.gap,
                worth=worth_of_search(self.gap),
                start=start,
                progress=note,
            ),
        )


def worth_of_search(gap: float) -> float:
    """Units of cost that a second of search for a plan is worth; none where the best plan is asked for."""
    return 1 / (_STEPS * UNIT) if gap else 0.0


def _without(problem: Problem, excluded: Collection[tuple[int, int]]) -> Problem:
    """The problem without some choices of nodes."""
    costs = problem.costs.copy()
    for node, choice in excluded:
        costs[problem.choice_start[node] + choice] = FORBIDDEN
    return replace(problem, costs=costs)
