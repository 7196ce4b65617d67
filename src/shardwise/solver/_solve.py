"""`solve`: reduce, search with several workers until the time is up or the optimum is proven, check, return.

Compiled code and HiGHS are imported by the first call, so that importing the package is fast.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UsageError, require
from ._evaluate import Evaluation, evaluate
from ._exchange import Exchange, View
from ._infeasible import shortfall
from ._prepare import prepare
from ._problem import Problem
from ._solution import Improvement, Shortfall, Solution
from ._threads import Threads, in_time

if TYPE_CHECKING:
    from ._passes import Passes
    from ._reduce import Reduction

_ENDING = 0.5  # seconds of the limit, at most, in which workers end and the solution is checked
_FREE = 1.0  # seconds of search that are worth it whatever they save
_FEW_NODES = 40  # of a kernel, up to which one worker suffices


def solve(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    gap: float = 0.0,
    worth: float = 0.0,
    max_iterations: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    start: Sequence[int] | None = None,
    explain: bool = True,
    progress: Callable[[Improvement], None] | None = None,
) -> Solution:
    """The cheapest choice per node under the memory limit.

    Returns when the optimum is proven, a solution is proven to be within the relative `gap` of it, or `time_limit`
    seconds have passed since the call (the first call on a machine compiles for about 20 s); Ctrl-C ends it early with
    the best solution so far. `worth` is what a second of search is worth, in units of cost: after the first second it
    also ends once a better solution could save no more than that for every second that it took. `workers` defaults to
    the available cores, at most 8. With `max_iterations` the search is limited by rounds and the result depends only on
    `seed` (two workers by default); the time limit still applies.
    `start` is a solution that is known: it is returned unless a cheaper one is found. With `explain` the memory that an
    infeasible problem lacks is worked out. `progress` is called with every improvement.
    """
    begun = time.monotonic()
    require(problem, Problem, "problem", "a Problem, for example from shardwise.solver.read_problem")
    _check(time_limit, gap, max_iterations, workers)
    require(worth, (int, float), "worth", "a number")
    run = _Run(
        problem,
        begun,
        begun + time_limit - min(_ENDING, time_limit / 10),
        max_iterations,
        seed,
        _workers(workers, max_iterations),
        progress,
        gap,
        worth,
    )
    run.explain = explain
    if start is not None:
        run.begin_at(start)
    try:
        return run.solve()
    except KeyboardInterrupt:
        return run.interrupted()


def least_memory(
    problem: Problem,
    *,
    at_least: int = 0,
    time_limit: float = 60.0,
    max_iterations: int | None = None,
    seed: int = 0,
) -> Shortfall:
    """The smallest memory limit under which the problem has a solution, and one; bounds on it if time ends before.

    Limits below `at_least` are taken to be infeasible, as the caller knows.
    """
    begun = time.monotonic()
    _check(time_limit, 0.0, max_iterations, None)
    workers = _workers(None, max_iterations)
    return _Run(problem, begun, begun + time_limit, max_iterations, seed, workers, None).least_memory(
        at_least
    )


def _check(time_limit: float, gap: float, max_iterations: int | None, workers: int | None) -> None:
    for name, value in (("time_limit", time_limit), ("gap", gap)):
        require(value, (int, float), name, "a number")
    for name, count in (("max_iterations", max_iterations), ("workers", workers)):
        require(count, (int, NoneType), name, "a whole number")
    if not time_limit > 0:
        raise UsageError(f"time_limit is {time_limit!r}: it must be a positive number of seconds.")
    if not gap >= 0:
        raise UsageError(f"gap is {gap!r}: it must be 0 or a fraction of the cost, such as 0.01.")
    if max_iterations is not None and max_iterations < 1:
        raise UsageError(f"max_iterations is {max_iterations!r}: it must be at least 1.")
    if workers is not None and workers < 1:
        raise UsageError(f"workers is {workers!r}: it must be at least 1.")


def _workers(workers: int | None, max_iterations: int | None) -> int:
    if workers is not None:
        return workers
    if max_iterations is not None:
        return 2
    # The cores this process may use, where the system provides them; macOS does not.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores)


class _Run:
    """One call: the clock, the log and the conversion of the kernel's costs to the problem's."""

    def __init__(
        self,
        problem: Problem,
        begun: float,
        deadline: float,
        most_rounds: int | None,
        seed: int,
        workers: int,
        progress: Callable[[Improvement], None] | None,
        gap: float = 0.0,
        worth: float = 0.0,
    ) -> None:
        self.problem, self.begun, self.deadline = problem, begun, deadline
        self.most_rounds, self.seed, self.workers, self.progress = most_rounds, seed, workers, progress
        self.gap, self.worth = gap, worth
        self.reduction: Reduction | None = None
        self.exchange: Exchange | None = None
        self.log: list[Improvement] = []
        self.explain = True
        self.slowest_check = 0.0
        self.last_checked: tuple[np.ndarray, tuple[list[int], Evaluation]] | None = None
        self.start: tuple[list[int], Evaluation] | None = None

    def begin_at(self, choices: Sequence[int]) -> None:
        """Take a solution as the best one until there is a cheaper one."""
        checked = evaluate(self.problem, choices)
        if not checked.feasible:
            why = f"{checked.forbidden} forbids it" if checked.forbidden else "it does not fit in the memory"
            raise UsageError(f"start is not a solution of the problem: {why}.")
        self.start = [int(choice) for choice in choices], checked
        self._add(Improvement(time.monotonic() - self.begun, checked.cost, None, checked.peak))

    def solve(self) -> Solution:
        if in_time(self._prepare, self.deadline) is None:
            return self._unknown(
                "the time limit was reached before the code was compiled, which the first call on a machine does in "
                "about 20 s"
            )
        self.reduction = in_time(self._reduce, self.deadline)
        if self.reduction is None:
            return self._unknown("the time limit was reached before the problem was reduced")
        kernel = self.reduction.kernel
        if kernel is None:
            return self._infeasible()
        if kernel.nodes == 0:
            return self._finish(View(np.zeros(0, np.int64), 0.0, 0.0, proven=True))
        workers = 1 if kernel.nodes < _FEW_NODES else self.workers
        self.exchange = Exchange(workers, self.most_rounds is not None, self._closed)
        self._search(workers)
        view = self.exchange.view()
        if view.proven and view.choice is None:
            return self._infeasible()
        return self._finish(view)

    def _prepare(self) -> bool:
        return prepare()

    def least_memory(self, low: int) -> Shortfall:
        return shortfall(self.problem, low, self.deadline, self._attempt)

    def interrupted(self) -> Solution:
        """The result after Ctrl-C: the best solution so far."""
        return self._finish(View() if self.exchange is None else self.exchange.view())

    def _reduce(self) -> "Reduction":
        from ._reduce import reduce

        return reduce(self.problem)

    def _search(self, workers: int) -> None:
        """Let the workers search until they end or the time is up, and log their improvements."""
        assert self.exchange is not None and self.reduction is not None and self.reduction.kernel is not None
        from ._passes import Passes

        passes = Passes(self.reduction.kernel, self.gap, self.exchange.stop)
        threads = Threads([partial(self._work, number, workers, passes) for number in range(workers)])
        try:
            with _interrupting(self.exchange):
                while threads.running and not self.exchange.halted and self._left() > 0:
                    self.exchange.wait(min(0.2, self._left()))
                    self._note()
        finally:
            self.exchange.halt()
            threads.join(time.monotonic() + _ENDING / 2)

    def _work(self, number: int, workers: int, passes: "Passes") -> None:
        assert self.exchange is not None and self.reduction is not None
        from ._worker import Worker

        exchange, in_step = self.exchange, self.most_rounds is not None
        worker = Worker(
            self.reduction, passes, number, workers, self.seed, exchange.stop, self._left, in_step
        )
        rounds = 0
        try:
            while self.most_rounds is None or rounds < self.most_rounds:
                view = exchange.meet()
                if exchange.halted:
                    return
                exchange.tell(number, worker.round(view))
                rounds += 1
            exchange.meet()
        except threading.BrokenBarrierError:
            pass  # another worker ended the run
        finally:
            exchange.leave()

    def _left(self) -> float:
        """Remaining seconds of search: reserves the time of the slowest check so far, once here and once for the
        caller."""
        return self.deadline - time.monotonic() - 2 * self.slowest_check

    def _closed(self, view: View) -> bool:
        bound, cost = self._bound(view.bound), self._best(view)
        if bound is None or cost is None:
            return False
        spent = max(0.0, time.monotonic() - self.begun - _FREE)
        return cost - bound <= max(self.gap * abs(cost), self.worth * spent, _rounding(cost))

    def _best(self, view: View) -> int | None:
        """The cost of the best solution so far."""
        known = [self._cost(view.cost)] if np.isfinite(view.cost) else []
        return min(known + ([self.start[1].cost] if self.start is not None else []), default=None)

    def _constant(self) -> float:
        assert self.reduction is not None and self.reduction.kernel is not None
        return self.reduction.kernel.constant

    def _cost(self, cost: float) -> int:
        return round(cost + self._constant())

    def _bound(self, bound: float) -> int | None:
        """The bound as an integer: costs are integers, and rounding errors are below the tolerance."""
        if not np.isfinite(bound):
            return None
        value = bound + self._constant()
        return math.ceil(value - _rounding(value))

    def _note(self) -> None:
        assert self.exchange is not None and self.reduction is not None
        view = self.exchange.view()
        cost = self._best(view)
        bound = self._bound(view.bound)
        if cost is not None and bound is not None:
            bound = min(bound, cost)
        last = self.log[-1] if self.log else None
        known = (None, None) if last is None else (last.cost, last.bound)
        if (cost, bound) == known:
            return
        peak = last.peak if last is not None else None
        if cost is not None and (last is None or last.cost != cost):
            assert view.choice is not None
            peak = self._checked(view.choice)[1].peak
        self._add(Improvement(time.monotonic() - self.begun, cost, bound, peak))

    def _add(self, line: Improvement) -> None:
        self.log.append(line)
        if self.progress is not None:
            self.progress(line)

    def _finish(self, view: View) -> Solution:
        found = None if view.choice is None else self._checked(view.choice)
        if self.start is not None and (found is None or self.start[1].cost < found[1].cost):
            found = self.start
        if found is None:
            return self._unknown("no solution was found within the time limit", view.bound)
        choices, checked = found
        if not checked.feasible:
            raise AssertionError(f"the search returned an invalid solution: {checked}")
        bound = self._bound(view.bound)
        if view.proven or (bound is not None and bound >= checked.cost):
            bound = checked.cost
        if not self.log or self.log[-1].cost != checked.cost or self.log[-1].bound != bound:
            self._add(Improvement(time.monotonic() - self.begun, checked.cost, bound, checked.peak))
        status = "optimal" if bound == checked.cost else "feasible"
        seconds = time.monotonic() - self.begun
        return Solution(status, choices, checked.cost, bound, checked.peak, seconds, tuple(self.log))

    def _checked(self, choice: np.ndarray) -> tuple[list[int], Evaluation]:
        """A solution of the kernel as one of the problem, checked by the evaluator."""
        assert self.reduction is not None
        if self.last_checked is None or not np.array_equal(self.last_checked[0], choice):
            begun = time.monotonic()
            choices = self.reduction.expand(choice).tolist()
            self.last_checked = choice, (choices, evaluate(self.problem, choices))
            self.slowest_check = max(self.slowest_check, time.monotonic() - begun)
        return self.last_checked[1]

    def _unknown(self, reason: str, bound: float = -math.inf) -> Solution:
        if self.start is not None:
            return self._finish(View(bound=bound))
        known = None if self.exchange is None else self._bound(bound)
        seconds = time.monotonic() - self.begun
        return Solution("unknown", None, None, known, None, seconds, tuple(self.log), reason=reason)

    def _attempt(self, problem: Problem, deadline: float) -> Solution:
        run = _Run(problem, time.monotonic(), deadline, self.most_rounds, self.seed, self.workers, None)
        run.explain = False
        return run.solve()

    def _infeasible(self) -> Solution:
        assert self.reduction is not None
        lacking = self.least_memory(self.problem.usage_limit + 1) if self.explain else None
        seconds = time.monotonic() - self.begun
        return Solution("infeasible", None, None, None, None, seconds, tuple(self.log), lacking)


@contextmanager
def _interrupting(exchange: Exchange) -> Iterator[None]:
    """Let Ctrl-C end the search, and raise it after that: while a lock is being taken, nothing would release it. A
    second one is raised at once."""
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) != usual:
        yield
        return
    heard = False

    def end(*_: object) -> None:
        nonlocal heard
        heard = True
        signal.signal(signal.SIGINT, usual)
        exchange.stop[0] = 1  # without a lock, which may be the one that is being taken

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if heard:
        raise KeyboardInterrupt


def _rounding(cost: float) -> float:
    """What rounding errors may make of a cost in floating point: of large ones more than the last whole number."""
    return 1e-6 + 1e-10 * abs(cost)
