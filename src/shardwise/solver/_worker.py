"""One worker of the search: rounds of dual ascent, of walking among solutions, and of proof.

The first worker ascends the dual until it stalls, removes the choices that cannot be part of a solution better than the
best known cost, and solves the rest as a mixed-integer program if it is small enough; between such attempts it walks.
The others walk from the start, with the prices that the first one publishes. A round is limited by steps and not by
seconds, so that a run can be reproduced.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ._dual import Dual
from ._eliminate import scratch, solve_region, work_without_cutset
from ._exchange import View
from ._kernel import BIG, Kernel
from ._linear import CAN_PROVE
from ._milp import prove, size_of
from ._passes import Passes
from ._pricing import cost_of, load_of, overflow, price_nodes
from ._reduce import Reduction, reduce
from ._walk import walk

_MOST_PROVEN = 250_000  # variables of the largest program that is attempted
_SMALL = 5_000  # variables of a program that is attempted immediately
_MOST_EXACT = 300_000_000  # table entries that an exact elimination of all nodes may read
_LARGEST_EXACT = 4e6  # of one of its tables: a float as in walks, so that the code is compiled once
_EXACT_STEPS = 12  # of the ascent by exact eliminations, in one round
_MOST_RESTARTS = 40  # of the ascent after it stalled
_PATIENCE = 8  # cycles of the walk without a new best before it starts from the common best


class Worker:
    """State of one worker. `round` runs one round from a view of all workers and returns its results."""

    def __init__(
        self,
        reduction: Reduction,
        passes: Passes,
        number: int,
        workers: int,
        seed: int,
        stop: np.ndarray,
        seconds_left: Callable[[], float],
        in_step: bool,
    ) -> None:
        assert reduction.kernel is not None
        self.reduction, self.kernel = reduction, reduction.kernel
        self.passes, self.number, self.alone = passes, number, workers == 1
        self.stop, self.seconds_left, self.in_step = stop, seconds_left, in_step
        a = self.a = self.kernel.arrays
        self.random = random.Random(1_000_003 * seed + number)
        self.scratch = scratch(a, self.random.getrandbits(62))
        self.pool = np.empty(1 << 16)
        points = len(a.capacity)
        self.x = np.zeros(len(a.k), np.int64)
        self.load = np.zeros(points, np.int64)
        self.cost = np.inf
        self.best, self.best_cost = self.x.copy(), np.inf
        self.prices = np.zeros(points)
        self.rounds = 0
        self.cycle = 0
        self.high = 1.0
        self.stale = 0
        self.stuck = 0
        self.urgency = np.zeros(points)
        self.dual = Dual(self.kernel) if number == 0 else None
        self.tried_gap = np.inf
        self.ceiling = _ceiling(self.kernel)
        self.small = size_of(self.kernel) < _SMALL
        self.exact = number == 0 and work_without_cutset(a, self.scratch, _LARGEST_EXACT) <= _MOST_EXACT
        self.exact_step = 1.0

    def round(self, view: View) -> View:
        """One round. Returns new results."""
        self.rounds += 1
        if self.rounds == 1:
            return self._first()
        if self.rounds == 2 and self.exact:
            return self._without_memory()
        if view.prices is not None:
            self.prices = view.prices
        if self.exact and self.rounds % 4 == 1:
            return self._ascend_exactly(view)
        if self.dual is not None:
            turn = self.rounds % 4
            ready = self.dual.stalled or (self.small and self.dual.rounds >= 3)
            if not ready and (not self.alone or turn % 2 == 0 or not np.isfinite(self.best_cost)):
                return self._ascend(view)
            if self._worth_proving(view):
                return self._prove(view)
            if turn == 0 and self.dual.restarts < _MOST_RESTARTS:
                return self._ascend(view)
        return self._walk(view)

    def _without_memory(self) -> View:
        """The best choices without the memory limit, by eliminating all nodes: if they fit, they are optimal."""
        bound = self._eliminate_all(np.zeros(len(self.load)))
        report = self._report(bound=bound)
        return replace(report, proven=True) if report.cost == bound else report

    def _eliminate_all(self, prices: np.ndarray) -> float:
        """Move to the best choices at given prices, and return the bound at these prices."""
        a = self.a
        theta = np.empty(len(a.cost))
        price_nodes(a, prices, theta)
        _, self.pool = solve_region(
            a, theta, a.tables, self.scratch, self.x, np.arange(len(a.k)), _LARGEST_EXACT, self.pool
        )
        self.cost = cost_of(a, self.x)
        load_of(a, self.x, self.load)
        return self.cost + float(prices @ (self.load - a.capacity))

    def _ascend_exactly(self, view: View) -> View:
        """Steps of subgradient ascent in which the priced problem is solved exactly: converges to the best bound of
        any prices."""
        prices, report = self.prices.copy(), View()
        kept = self.x.copy(), self.load.copy(), self.cost
        for _ in range(_EXACT_STEPS):
            bound = self._eliminate_all(prices)
            report = report.better(self._report(bound=bound)).better(
                View(bound=bound, prices=prices, priced=bound)
            )
            over = (self.load - self.a.capacity).astype(float)
            length = float(over @ over)
            if self.stop[0] or length == 0:
                break
            ahead = (min(view.cost, report.cost) if np.isfinite(view.cost) else 1.05 * abs(bound)) - bound
            self.exact_step *= 0.97
            prices = np.maximum(prices + self.exact_step * max(ahead, 1.0) / length * over, 0.0)
        self.x, self.load, self.cost = kept
        return report

    def _first(self) -> View:
        """Message passing without prices: a bound, and a first solution, improved where the bound is far."""
        passed = self.passes.result()
        self.x, self.cost = passed.choice.copy(), passed.cost
        load_of(self.a, self.x, self.load)
        if not passed.near or overflow(self.a, self.load):
            for _ in range(4):
                self._step(np.zeros(len(self.load)), 1.0, 0.0, 0, True)
        return self._report(bound=passed.bound)

    def _report(self, bound: float = -np.inf) -> View:
        """The view to publish: the current solution if it is feasible and the best so far."""
        if self.cost < min(self.best_cost, BIG / 2) and overflow(self.a, self.load) == 0:
            self.best, self.best_cost = self.x.copy(), cost_of(self.a, self.x)
            self.cost = self.best_cost
            self.stale = 0
        return View(self.best, self.best_cost, bound) if np.isfinite(self.best_cost) else View(bound=bound)

    def _step(self, prices: np.ndarray, scale: float, noise: float, size: int, free: bool) -> None:
        limit = 10 ** self.random.uniform(2.5, 4.6)
        change, self.pool = walk(
            self.a, self.scratch, self.x, self.load, prices, scale, noise, size, limit, free, self.pool
        )
        self.cost += change

    def _ascend(self, view: View) -> View:
        assert self.dual is not None
        bound, prices = self.dual.ascend(min(view.cost, 2 * self.ceiling + 1), self.stop)
        if bound > self.ceiling + 1 and not np.isfinite(view.cost):
            return View(proven=True)  # no allowed solution costs as much: the problem is infeasible
        self.prices = prices
        report = View(bound=bound, prices=prices, priced=bound)
        if self.alone or not np.isfinite(self.best_cost) or self.dual.rounds % 4 == 0:
            keep = self.x, self.load, self.cost
            self.x, self.load = self.dual.decoded.copy(), np.zeros_like(self.load)
            self.cost = cost_of(self.a, self.x)
            load_of(self.a, self.x, self.load)
            for _ in range(6):
                self._improve()
                report = report.better(self._report())
                if self.stop[0]:
                    break
            if np.isfinite(keep[2]) and overflow(self.a, self.load):
                self.x, self.load, self.cost = keep
        return report

    def _walk(self, view: View) -> View:
        report = View()
        for _ in range(max(4, min(40, 40_000 // max(1, len(self.a.k))))):
            self._improve(view)
            report = report.better(self._report())
            if self.stop[0]:
                break
        return report

    def _improve(self, view: View | None = None) -> None:
        """One step: towards feasibility if the solution overflows, else along a saw-tooth of price levels."""
        if overflow(self.a, self.load):
            self._repair()
            return
        self.stuck = 0
        if self.cycle <= 0:
            self._begin_cycle(view)
        level = self.high * self.cycle / self.length
        self.cycle -= 1
        size = 0
        if self.random.random() < 0.5:
            size = int(10 ** self.random.uniform(1.0, np.log10(max(20, len(self.a.k)))))
        self._step(self.prices, level, self.random.choice((0.0, 0.3, 1.0)), size, False)

    def _begin_cycle(self, view: View | None) -> None:
        self.length = self.cycle = self.random.randint(8, 40)
        self.high = self.random.choice((0.5, 1.0, 1.5, 2.5))
        self.stale += 1
        if (
            view is not None
            and view.choice is not None
            and view.cost < self.best_cost
            and self.stale > _PATIENCE
        ):
            self.best, self.best_cost, self.stale = view.choice, view.cost, 0
        if np.isfinite(self.best_cost) and self.cost > self.best_cost:
            self.x, self.cost = self.best.copy(), self.best_cost
            load_of(self.a, self.x, self.load)

    def _repair(self) -> None:
        """Raise prices where memory overflows; let all nodes change when small steps do not help."""
        over = np.maximum(self.load - self.a.capacity, 0)
        before = over.sum()
        unit = (abs(self.cost) + 1.0) / max(1.0, float(before)) if self.cost < BIG / 2 else 1.0
        if self.stuck == 0:
            self.urgency = np.zeros(len(over))
        growth = 0.02 * 1.3 ** min(self.stuck, 40)
        self.urgency += growth * unit * (over > 0)
        free = self.stuck % 20 >= 8
        scale = 1.0 + 0.05 * self.stuck
        self._step(self.prices * scale + self.urgency, 1.0, 0.2, 0, free)
        self.stuck += 1

    def _worth_proving(self, view: View) -> bool:
        if not np.isfinite(view.cost):
            enough = self.small or self.rounds > 20
            return enough and size_of(self.kernel) <= _MOST_PROVEN and self.tried_gap == np.inf
        return view.cost - view.bound < 0.8 * self.tried_gap

    def _prove(self, view: View) -> View:
        """Remove choices that cannot improve the best cost, reduce again, solve the rest if it is small."""
        assert self.dual is not None
        reduction = self.reduction
        if np.isfinite(view.cost):
            self.tried_gap = view.cost - view.bound
            bound, slack = self.dual.slacks()
            reduction = reduce(
                self.reduction.problem, allowed=self.reduction.allowed(bound + slack <= view.cost - 0.5)
            )
            if reduction.kernel is None:
                return View(proven=True)
        else:
            self.tried_gap = 1e300
        assert reduction.kernel is not None
        kernel: Kernel = reduction.kernel
        if not CAN_PROVE or size_of(kernel) > _MOST_PROVEN:
            return View()
        # Another worker must keep walking meanwhile; a small program may take all the time of one worker.
        share = 0.3 if self.alone and not self.small else 1.0 if size_of(kernel) < 60_000 else 0.4
        proof = prove(
            kernel, share * self.seconds_left(), lambda: bool(self.stop[0]), 50 if self.in_step else None
        )
        shift = kernel.constant - self.kernel.constant
        report = View(bound=min(proof.bound + shift, view.cost))
        if proof.choice is not None:
            choice = self.reduction.restrict(reduction.expand(proof.choice))
            if choice is not None:
                report = report.better(View(choice, cost_of(self.a, choice)))
        if proof.status == "infeasible":
            report = report.better(View(proven=True))
        return report


def _ceiling(kernel: Kernel) -> float:
    """A cost that no solution without forbidden pairs exceeds."""
    a = kernel.arrays
    most = float(np.maximum.reduceat(a.cost, a.start[:-1]).sum())
    known: dict[int, float] = {}
    for e, (u, v) in enumerate(a.ends.tolist()):
        at = int(a.table[2 * e])
        if at not in known:
            table = a.tables[at : at + int(a.k[u] * a.k[v])]
            known[at] = float(table[table < BIG / 2].max(initial=0.0))
        most += known[at]
    return most
