"""The search for the cheapest plan that fits: the solver proposes, the evaluator of plans decides.

The problem counts no more memory than a plan holds (`_memory`). So where it has no solution under a limit there is no
plan under it either, and its bound under the limit is one for every plan that fits. A solution may still hold more as a
plan than as a solution: then the problem is given smaller limits until its plan fits, and the limits in between are
searched for a cheaper one. What then is still open, in a small graph all of it, is decided by branching (`_branch`).
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import UsageError, require
from ..graph import Node, Ref
from ..progress import Progress
from ..solver import FORBIDDEN, Improvement, Problem, Shortfall, Solution, least_memory, prepare, solve
from ._again import CopyChoices
from ._branch import Met, Unmet, branch
from ._fold import Folded, fold
from ._items import Items, Restriction
from ._kinds import UNIT
from ._memory import Memory
from ._plan import Plan
from ._preferences import SAME, preferred
from ._schedule import Value
from ._summary import bytes_text, exact_bytes_text

FEW = 200  # items up to which the problem may know memory by pairs of choices: it is several times as large
_LIMITS = 8  # that the problem is given before a plan counts as the best that was found
_BOXES, _BOXES_OF_MANY = 3_000, 24  # problems that are solved in branching, by whether there are few items
STEPS = 20_000  # of a run: what these could still save is what a search may take
_WITHIN = "searching within memory"
_ROUNDS = 60  # of search for the least memory: with as many, it is the same every time


# The part of the time that is left which one search gets.
_SHARE = 0.8


class Clock:
    """The time of all searches for one plan. Each gets most of what is left, so that the next has some.

    It starts with the first search: building and pricing its problem takes none of it, nor does compiling the solver,
    which is done once per installation.
    """

    def __init__(self, seconds: float) -> None:
        require(seconds, (int, float), "time_limit", "a number")
        if not seconds > 0:
            raise UsageError(f"time_limit is {seconds!r}: it must be a positive number of seconds.")
        self.seconds = seconds

    @cached_property
    def _end(self) -> float:
        prepare()
        return time.monotonic() + self.seconds

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
        held: dict[bool, Memory] | None = None,
    ) -> None:
        # What choices hold, with pairs and without: that of a search among the same choices at other costs is as good.
        self.held = {} if held is None else held
        self.items, self.read, self.memory, self.share_layers = items, read, memory, share_layers
        self.gap, self.clock, self.progress, self.timed, self.what = gap, clock, progress, timed, what
        self.start = start
        self.started: Plan | None = None  # the plan from which the search started

    def cheapest(self) -> Plan:
        # Without the limit the problem is easier by far, and often its best plan fits.
        start = None
        if self.start is not None:
            known = self._solve(self._within(self.start), "proposing")
            if known.choices is not None:
                start, self.started = known.choices, self.read(self.unlimited, known).noted(bound=None)
        if start is None and (kept := next(self._ends(self.unlimited), None)) is not None:
            start = self._solve(kept.problem, "searching").choices
        solution = self._solve(self.unlimited.problem, "searching", start)
        if solution.choices is None:
            raise Unsolved(solution)
        made = self.read(self.unlimited, solution)
        if made.cost.peak > self.memory:
            return self._cheapest_that_fits(made.bound)
        if not self.few or self._is_close(made, made.bound or 0.0):
            return made
        best, bound = self._branch(self.unlimited, solution, made)
        assert best is not None
        return best.noted(bound=bound)

    @property
    def few(self) -> bool:
        return len(self.items.all) <= FEW

    def within(self, restriction: Restriction | None, searches: int = 1, steps: int = STEPS) -> Plan | None:
        """The cheapest plan within a restriction on choices, whatever memory it takes; None if none is found. It is the
        first of so many searches that share the time that is left, and so many steps must pay for it."""
        problem = self._within(restriction)
        seconds, worth = self.clock.left / searches, worth_of_search(self.gap, steps)
        solution = solve(problem, time_limit=seconds, gap=self.gap, worth=worth)
        return None if solution.choices is None else self.read(self.unlimited, solution)

    @cached_property
    def unlimited(self) -> Folded:
        """The problem without the limit on memory."""
        return self._fold(None)

    def _within(self, restriction: Restriction | None) -> Problem:
        """The problem without a limit in which a restriction forbids choices."""
        problem, costs = self.unlimited.problem, self.unlimited.problem.costs.copy()
        if restriction is None:
            return problem
        for place, node in enumerate(self.unlimited.node.tolist()):
            mask = self.items.left(place, restriction)
            if mask is not None:
                own = slice(problem.choice_start[node], problem.choice_start[node + 1])
                costs[own] = np.where(mask, costs[own], FORBIDDEN)
        return replace(problem, costs=costs)

    def _cheapest_that_fits(self, bound: float | None) -> Plan:
        """The cheapest plan that was found to fit; `bound` is that of all plans, whatever they hold."""
        best: Plan | None = None
        last: tuple[Folded, Solution] | None = None
        problems = self._problems()
        for folded in problems:
            ends = [(end, self._solve(end.problem, _WITHIN, explain=False)) for end in self._ends(folded)]
            ends = [(end, solution) for end, solution in ends if solution.choices is not None]
            starts = sorted((solution for _, solution in ends), key=lambda each: each.cost or 0)
            solution = self._solve(folded.problem, _WITHIN, starts[0].choices if starts else None)
            if solution.status == "infeasible":
                assert solution.shortfall is not None
                raise self._needs(folded, solution.shortfall, problems)
            if (known := folded.bound(solution)) is not None:
                bound = max(bound or 0.0, known)
            if solution.choices is not None:
                last = folded, solution
                best = self._tighten(folded, solution, best, bound or 0.0)
                for end, solution in ends:  # no plan is worse than those that decide nothing call by call
                    if best is None or best.cost.seconds > (end.bound(solution) or 0.0):
                        best = self._tighten(end, solution, best, bound or 0.0)
                if best is not None and self._is_close(best, bound or 0.0):
                    break
        if last is None:
            raise DoesNotFit(
                f"no plan of {self.what} that fits in {bytes_text(self.memory)} a device was found in "
                f"{self.clock.seconds:.0f} seconds of search: give it more time or memory",
                0,
                None,
            )
        if best is None or (self.few and not self._is_close(best, bound or 0.0)):
            best, known = self._branch(*last, best)
            bound = max(bound or 0.0, known)
        if best is None:
            folded, _ = last
            proven = self.memory + 1 if bound == math.inf else 0
            lacking = least_memory(
                folded.problem, at_least=proven, time_limit=self.clock.share, max_iterations=_ROUNDS
            )
            best = self._smallest(folded, lacking)
            if best is None or best.cost.peak > self.memory:
                raise self._needs(folded, lacking, problems)
        return best.noted(bound=bound)

    def _problems(self) -> Iterator[Folded]:
        """The problem under the memory limit: with what single choices hold, which is small and often enough to know,
        then, unless the graph is large, with what pairs of choices hold."""
        yield self._fold(self.memory)
        if self.few:
            yield self._fold(self.memory, pairs=True)

    def _ends(self, folded: Folded) -> Iterator[Folded]:
        """The problem with nothing computed again, and with everything; none if that is not to be decided, or if the
        graph is small."""
        if not self.items.copies or self.few:
            return
        problem = folded.problem
        for again in (False, True):
            costs = problem.costs.copy()
            for copy in self.items.copies:
                choices = self.items.choices[copy]
                assert isinstance(choices, CopyChoices)
                if choices.kept:  # a view is never kept, and takes no time
                    own = problem.choice_start[folded.node[self.items.places["call", copy]]]
                    kept, run = own + choices.absent, own + choices.run
                    costs[slice(kept, run) if again else slice(run, own + len(choices))] = FORBIDDEN
            yield replace(folded, problem=replace(problem, costs=costs))

    def _is_close(self, made: Plan, bound: float) -> bool:
        return made.cost.seconds * (1 - max(self.gap, SAME)) <= bound

    def _tighten(self, folded: Folded, solution: Solution, best: Plan | None, bound: float) -> Plan | None:
        """The cheapest plan that fits: the best so far, or that of a solution under the limit or a smaller one."""
        limit, fits, misses = self.memory, -1, self.memory + 1
        for _ in range(_LIMITS):
            made = self.read(folded, solution)
            over = made.cost.peak - self.memory
            if over > 0:
                # The solution is excluded, too, where it holds less than the limit as a solution.
                misses = min(limit, solution.peak or 0)
            else:
                fits = limit
                best = made if best is None else preferred(best, made)
            limit = (fits + misses) // 2 if fits >= 0 else misses - over
            close = best is not None and self._is_close(best, bound)
            if close or limit <= max(fits, 0) or self.clock.over:
                break
            tighter = replace(folded.problem, usage_limit=limit)
            solution = self._solve(tighter, _WITHIN, explain=False)
            if solution.choices is None:
                break
        return best

    def _branch(self, folded: Folded, solution: Solution, best: Plan | None) -> tuple[Plan | None, float]:
        """The best plan that fits, and a bound of all that do, found by branching where plans hold or take more than
        the problem knows."""

        def met(solution: Solution) -> Met:
            nonlocal best
            assert solution.choices is not None
            made = self.read(folded, solution)
            over = made.cost.peak - self.memory
            if over <= 0:
                best = made if best is None else preferred(best, made)
            return Met(
                made.bound or 0.0,
                made.cost.seconds if over <= 0 else math.inf,
                solution.choices,
                self._deciders(folded, made) if over > 0 else self._slower(folded, made),
                made.bound or 0.0 if self.few else over,
            )

        def look(problem: Problem, bound: float) -> Met | Unmet | None:
            solution = self._solve(problem, _WITHIN, explain=False)
            if solution.status == "infeasible":
                return None
            return Unmet(folded.bound(solution) or 0.0) if solution.choices is None else met(solution)

        begun, known = time.monotonic(), folded.bound(solution) or 0.0

        def over() -> bool:
            if self.clock.over or best is None or not self.gap:
                return self.clock.over
            return (best.cost.seconds - known) * STEPS < time.monotonic() - begun

        bound = branch(
            folded.problem,
            met(solution),
            look,
            best=math.inf if best is None else best.cost.seconds,
            gap=max(self.gap, SAME),
            most=_BOXES if self.few else _BOXES_OF_MANY,
            over=over,
        )
        return best, bound

    def _deciders(self, folded: Folded, made: Plan) -> list[int]:
        """The nodes that decide what a plan holds where it holds most: with the same choices for all of them every plan
        holds as much. Those of what is there come first."""
        entries, items = made.schedule.entries, self.items
        peak = int(np.argmax(made.cost.held))
        # Of a compiled kernel any result may lie in what it reads; and the peak may be after the last pass.
        if items.graph.execution != "eager" or made.cost.held[peak] < made.cost.peak:
            return list(range(folded.classes))
        live = {Value(Ref(entry.name)) for entry in made.graph.inputs}
        for entry in entries[:peak]:
            live = (live | {*entry.made}) - {*entry.dead}
        refs = {value.ref for value in (*live, *entries[peak].used, *entries[peak].made)}
        waiting = list(refs)
        while waiting:  # what a view lies in
            maker = made.graph[waiting.pop().name]
            if isinstance(maker, Node) and maker.facts.view and maker.inputs[0] not in refs:
                refs.add(maker.inputs[0])
                waiting.append(maker.inputs[0])
        copy_of = {name: copy for copy, name in items.copies.items()}
        refs |= {Ref(copy_of[ref.name], ref.output) for ref in refs if ref.name in copy_of}
        places = {items.made[ref][0] for ref in refs}
        for ref in refs:
            for group in items.groups.get(ref, ()):
                places |= {items.places["call", node.name] for node in group.users}
                places |= set() if group.copy is None else {group.copy}
        outputs = enumerate(items.graph.outputs)
        places |= {items.places["output", str(position)] for position, o in outputs if o.value in refs}
        there = {int(folded.node[place]) for place in places}
        # Parameters are there throughout, and what runs again decides what runs when.
        places |= items.lasting
        places |= {items.places["call", copy] for copy in items.copies}
        return [*sorted(there), *sorted({int(folded.node[place]) for place in places} - there)]

    def _slower(self, folded: Folded, made: Plan) -> list[int] | None:
        """The nodes by which a plan that fits may be slower than its bound; None if it is not, or it is not known.

        A host that starts more calls than the device waits for is faster only with fewer of them.
        """
        if not made.cost.waiting or self._is_close(made, made.bound or 0.0):
            return None
        again = [copy for copy in self.items.copies if copy in made.choices]
        return sorted({int(folded.node[self.items.places["call", copy]]) for copy in again})

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
        if self.few and smallest is not None and smallest.cost.peak > least and lacking.choices is not None:
            smallest, least = self._branch_for_memory(folded, lacking.choices, smallest, least)
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

    def _branch_for_memory(
        self, folded: Folded, choices: list[int], smallest: Plan, least: int
    ) -> tuple[Plan, int]:
        """The plan that holds least, and the bytes that every plan holds at least, where `least` is known already."""

        def met(choices: list[int], bound: float) -> Met:
            nonlocal smallest
            made = self.read(folded, Solution("feasible", choices, None, None, None, 0.0))
            smallest = min(smallest, made, key=lambda plan: plan.cost.peak)
            peak = made.cost.peak
            return Met(bound, peak, choices, self._deciders(folded, made) if peak > bound else None, bound)

        def look(problem: Problem, bound: float) -> Met | Unmet | None:
            lacking = least_memory(
                problem, at_least=int(bound), time_limit=self.clock.share, max_iterations=_ROUNDS
            )
            if lacking.forbidden:
                return None
            known = float(lacking.at_least or 0)
            return Unmet(known) if lacking.choices is None else met(lacking.choices, known)

        bound = branch(
            folded.problem,
            met(choices, least),
            look,
            best=smallest.cost.peak,
            most=_BOXES,
            over=lambda: self.clock.over,
        )
        return smallest, int(bound)

    def _fold(self, memory: int | None, *, pairs: bool = False) -> Folded:
        self.progress("pricing")
        name = self.items.graph.name

        def folded() -> Folded:
            if pairs not in self.held:
                self.held[pairs] = Memory(self.items, pairs=pairs)
            return fold(self.items, memory, held=self.held[pairs], share_layers=self.share_layers, name=name)

        return self.timed("problem", folded)

    def _solve(
        self, problem: Problem, stage: str, start: list[int] | None = None, *, explain: bool = True
    ) -> Solution:
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
                explain=explain,
                progress=note,
            ),
        )


def worth_of_search(gap: float, steps: int = STEPS) -> float:
    """Units of cost that a second of search for a plan is worth; none where the best plan is asked for."""
    return 1 / (steps * UNIT) if gap else 0.0
