"""Message passing without prices, with which every search begins: a bound, and a first solution.

It is the same for all workers, so the one that comes first works it out for all.
"""

import threading
from typing import NamedTuple

import numpy as np

from ._kernel import Kernel
from ._messages import message_offsets, sweep
from ._pricing import cost_of

_MOST_READ = 400_000_000  # table entries
_NEAR = 1e-6  # of the cost: a bound that is as near is near enough, where a gap is allowed at all


class Passed(NamedTuple):
    """Choices, their cost, the bound, and whether it is so near that nothing is left to search for but memory."""

    choice: np.ndarray
    cost: float
    bound: float
    near: bool


class Passes:
    """The passes of a kernel, of which solutions may be within a relative gap of the best."""

    def __init__(self, kernel: Kernel, gap: float, stop: np.ndarray) -> None:
        self._kernel, self._near, self._stop = kernel, min(gap, _NEAR), stop
        self._lock = threading.Lock()
        self._passed: Passed | None = None

    def result(self) -> Passed:
        with self._lock:
            if self._passed is None:
                self._passed = self._run()
            return self._passed

    def _run(self) -> Passed:
        a = self._kernel.arrays
        offset = message_offsets(a)
        messages, x = np.zeros(offset[-1]), np.zeros(len(a.k), np.int64)
        bound, best, found, near = -np.inf, np.inf, x, False
        for number in range(max(20, min(100, _MOST_READ // max(1, len(a.tables))))):
            sweep(a, a.cost, a.tables, messages, offset, x, True)
            now = sweep(a, a.cost, a.tables, messages, offset, x, False)
            cost = cost_of(a, x)
            if cost < best:
                best, found = cost, x.copy()
            rise, bound = now - bound, max(bound, now)
            near = best - bound < max(0.5, self._near * abs(best + self._kernel.constant))
            if near or self._stop[0] or (number >= 40 and rise < 1e-6 * abs(now)):
                break
        return Passed(found, best, bound, near)
