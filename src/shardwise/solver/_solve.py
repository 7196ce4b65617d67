"""`solve`: reduce, search with several workers until the time is up or the optimum is proven, check, return.

What is compiled or needs HiGHS is imported on the first call, so that importing the package stays quick.
"""

import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UsageError, require
from ._evaluate import evaluate
from ._exchange import Exchange, View
from ._infeasible import shortfall
from ._problem import Problem
from ._solution import Progress, Solution

if TYPE_CHECKING:
    from ._reduce import Reduction

_LEAST_ROUNDS = 8  # of a small problem, whatever the time
_FEW_NODES = 40  # of a kernel, up to which one worker is enough


def solve(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    gap: float = 0.0,
    max_iterations: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """The cheapest choice per node under the memory limit.

    Runs until the optimum is proven, or a solution is known to lie within the share `gap` of it, or `time_limit`
    seconds have passed since the call; Ctrl-C ends it early with the best so far. `workers` defaults to the
    cores at hand, at most 8. With `max_iterations`, rounds of search are counted instead and the result depends
    on `seed` alone (two workers unless told otherwise); the time limit still holds. `progress` is called with
    every improvement.
    """
    begun = time.monotonic()
    require(problem, Problem, "problem", "a Problem, such as shardwise.solver.read_problem reads")
    _check(time_limit, gap, max_iterations, workers)
    run = _Run(
        problem,
        begun,
        begun + time_limit,
        max_iterations,
        seed,
        _workers(workers, max_iterations),
        progress,
        gap,
    )
    try:
        return run.solve()
    except KeyboardInterrupt:
        return run.interrupted()


def _check(time_limit: float, gap: float, max_iterations: int | None, workers: int | None) -> None:
    for name, value in (("time_limit", time_limit), ("gap", gap)):
        require(value, (int, float), name, "a number")
    for name, count in (("max_iterations", max_iterations), ("workers", workers)):
        require(count, (int, NoneType), name, "a whole number")
    if not time_limit > 0:
        raise UsageError(f"time_limit is {time_limit!r}: it must be a positive number of seconds.")
    if not gap >= 0:
        raise UsageError(f"gap is {gap!r}: it must be 0 or a share of the cost, such as 0.01.")
    if max_iterations is not None and max_iterations < 1:
        raise UsageError(f"max_iterations is {max_iterations!r}: it must be at least 1.")
    if workers is not None and workers < 1:
        raise UsageError(f"workers is {workers!r}: it must be at least 1.")


def _workers(workers: int | None, max_iterations: int | None) -> int:
    if workers is not None:
        return workers
    if max_iterations is not None:
        return 2
    # What this process may use, where the system tells; a Mac does not.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores)


class _Run:
    """One call: the clock, the log and the way from the kernel's costs to the problem's."""

    def __init__(
        self,
        problem: Problem,
        begun: float,
        deadline: float,
        most_rounds: int | None,
        seed: int,
        workers: int,
        progress: Callable[[Progress], None] | None,
        gap: float = 0.0,
    ) -> None:
        self.problem, self.begun, self.deadline = problem, begun, deadline
        self.most_rounds, self.seed, self.workers, self.progress = most_rounds, seed, workers, progress
        self.gap = gap
        self.reduction: Reduction | None = None
        self.exchange: Exchange | None = None
        self.log: list[Progress] = []
        self.explain = True
        self.settled = True  # whether the deadline counts

    def solve(self) -> Solution:
        self._aside([self._reduce])
        assert self.reduction is not None
        kernel = self.reduction.kernel
        if kernel is None:
            return self._infeasible()
        if kernel.nodes == 0:
            return self._finish(View(np.zeros(0, np.int64), 0.0, 0.0, proven=True))
        workers = 1 if kernel.nodes < _FEW_NODES else self.workers
        self.exchange = Exchange(workers, self.most_rounds is not None, self._closed)
        self._aside([partial(self._work, number, workers) for number in range(workers)])
        view = self.exchange.view()
        if view.proven and view.choice is None:
            return self._infeasible()
        return self._finish(view)

    def interrupted(self) -> Solution:
        """What Ctrl-C leaves: the best so far."""
        return self._finish(View() if self.exchange is None else self.exchange.view())

    def _aside(self, jobs: list[Callable[[], None]]) -> None:
        """Run the jobs in threads. This one stays free for the clock, the log and Ctrl-C."""
        failures: list[Exception] = []

        def run(job: Callable[[], None]) -> None:
            try:
                job()
            except Exception as error:
                failures.append(error)
                self._halt()

        threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                if self.exchange is None:
                    threads[0].join(0.2)
                    continue
                self.exchange.wait(min(0.2, self._left()) if self._left() > 0 else 0.05)
                self._note()
                if self._left() <= 0 and self.settled:
                    self.exchange.halt()
                if self.exchange.halted:
                    break
        finally:
            self._halt()
            patience = time.monotonic() + 0.5
            for thread in threads:
                thread.join(max(0.0, patience - time.monotonic()))
        for failure in failures:
            raise failure

    def _halt(self) -> None:
        if self.exchange is not None:
            self.exchange.halt()

    def _reduce(self) -> None:
        from ._reduce import reduce

        self.reduction = reduce(self.problem)

    def _work(self, number: int, workers: int) -> None:
        assert self.exchange is not None and self.reduction is not None
        from ._worker import Worker

        exchange, in_step = self.exchange, self.most_rounds is not None
        worker = Worker(self.reduction, number, workers, self.seed, exchange.stop, self._left, in_step)
        # A small problem gets an answer even if the time went into compiling, on the first call ever.
        self.settled = not worker.small
        rounds = 0
        try:
            while self.most_rounds is None or rounds < self.most_rounds:
                view = exchange.meet()
                if exchange.halted:
                    return
                exchange.tell(number, worker.round(view))
                rounds += 1
                self.settled = self.settled or rounds >= _LEAST_ROUNDS
            exchange.meet()
        except threading.BrokenBarrierError:
            pass  # another worker ended the run
        finally:
            exchange.leave()

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _closed(self, view: View) -> bool:
        bound = self._bound(view.bound)
        if bound is None or not np.isfinite(view.cost):
            return False
        cost = self._cost(view.cost)
        return cost - bound <= self.gap * abs(cost)

    def _constant(self) -> float:
        assert self.reduction is not None and self.reduction.kernel is not None
        return self.reduction.kernel.constant

    def _cost(self, cost: float) -> int:
        return round(cost + self._constant())

    def _bound(self, bound: float) -> int | None:
        """The bound as an integer: costs are integers, and rounding errors stay below the tolerance."""
        if not np.isfinite(bound):
            return None
        value = bound + self._constant()
        return math.ceil(value - 1e-6 - 1e-10 * abs(value))

    def _note(self) -> None:
        assert self.exchange is not None and self.reduction is not None
        view = self.exchange.view()
        cost = self._cost(view.cost) if np.isfinite(view.cost) else None
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
            peak = evaluate(self.problem, self.reduction.expand(view.choice).tolist()).peak
        self._add(Progress(time.monotonic() - self.begun, cost, bound, peak))

    def _add(self, line: Progress) -> None:
        self.log.append(line)
        if self.progress is not None:
            self.progress(line)

    def _finish(self, view: View) -> Solution:
        if view.choice is None:
            bound = (
                self._bound(view.bound)
                if self.reduction is not None and self.reduction.kernel is not None
                else None
            )
            return Solution(
                "unknown", None, None, bound, None, time.monotonic() - self.begun, tuple(self.log)
            )
        assert self.reduction is not None
        choices = self.reduction.expand(view.choice).tolist()
        checked = evaluate(self.problem, choices)
        if not checked.feasible:
            raise AssertionError(f"the search returned a solution that does not hold: {checked}")
        bound = self._bound(view.bound)
        if view.proven or (bound is not None and bound >= checked.cost):
            bound = checked.cost
        if not self.log or self.log[-1].cost != checked.cost or self.log[-1].bound != bound:
            self._add(Progress(time.monotonic() - self.begun, checked.cost, bound, checked.peak))
        status = "optimal" if bound == checked.cost else "feasible"
        seconds = time.monotonic() - self.begun
        return Solution(status, choices, checked.cost, bound, checked.peak, seconds, tuple(self.log))

    def _attempt(self, problem: Problem, deadline: float) -> Solution:
        run = _Run(problem, time.monotonic(), deadline, self.most_rounds, self.seed, self.workers, None)
        run.explain = False
        return run.solve()

    def _infeasible(self) -> Solution:
        assert self.reduction is not None
        lacking = shortfall(self.problem, self.deadline, self._attempt) if self.explain else None
        seconds = time.monotonic() - self.begun
        return Solution("infeasible", None, None, None, None, seconds, tuple(self.log), lacking)
