"""The dual problem: a price of memory per time point, updated by a deflected subgradient, bounded by message passing.

For any prices, the cost of the cheapest priced solution, minus price times capacity, is a lower bound on the cost of
every feasible solution; and for any messages, the passes bound the cheapest priced solution from below. So every
iteration gives a valid bound, and one pass in each direction between two price updates is enough.
"""

import numpy as np

from ._compiled import compiled, copy, fill
from ._kernel import Kernel
from ._messages import message_offsets, slacks, sweep
from ._pricing import load_of, price_nodes

_STALLED = 3e-5  # relative rise of the bound in a round of ascent below which it has stalled
_STEPS = 50  # iterations of a round
BOUND, FACTOR, FAILURES = 0, 1, 2  # slots of the state


@compiled
def ascend(a, offset, messages, prices, direction, best_messages, best_prices, state, target, steps, x, stop):
    """Polyak steps towards `target`; after several failures it returns to the best prices with a smaller step factor.

    `x` receives the solutions decoded by the passes; `direction` is the moving average of their overflow.
    """
    points = len(prices)
    theta = np.empty(len(a.cost))
    load = np.empty(points, np.int64)
    for _ in range(steps):
        if stop[0] != 0:
            return
        price_nodes(a, prices, theta)
        bound = -np.inf
        for forward in (True, False):  # a variable: constants would be compiled one by one
            bound = sweep(a, theta, a.tables, messages, offset, x, forward)
        for t in range(points):
            bound -= prices[t] * a.capacity[t]
        if bound > state[BOUND]:
            state[BOUND] = bound
            state[FACTOR] = min(state[FACTOR] * 1.1, 2.0)
            state[FAILURES] = 0
            copy(best_prices, prices, points)
            copy(best_messages, messages, len(messages))
        else:
            state[FAILURES] += 1
            if state[FAILURES] >= 20:
                state[FACTOR] = max(0.6 * state[FACTOR], 1e-7)
                state[FAILURES] = 0
                copy(prices, best_prices, points)
                copy(messages, best_messages, len(messages))
                fill(direction, 0.0)
                continue
        load_of(a, x, load)
        norm = 0.0
        for t in range(points):
            direction[t] = 0.9 * direction[t] + 0.1 * (load[t] - a.capacity[t])
            if prices[t] > 0 or direction[t] > 0:
                norm += direction[t] * direction[t]
        if norm > 0:
            step = state[FACTOR] * max(target - bound, 1e-4 * abs(target) + 1e-9) / norm
            for t in range(points):
                prices[t] = max(0.0, prices[t] + step * direction[t])


class Dual:
    """Prices, messages and step size of the ascent, between rounds."""

    def __init__(self, kernel: Kernel) -> None:
        self.a = kernel.arrays
        self.offset = message_offsets(self.a)
        self.messages = np.zeros(self.offset[-1])
        self.best_messages = self.messages.copy()
        self.prices = np.zeros(len(self.a.capacity))
        self.best_prices = self.prices.copy()
        self.direction = np.zeros_like(self.prices)
        self.state = np.array([-np.inf, 1.0, 0.0])
        self.decoded = np.zeros(len(self.a.k), np.int64)
        self.stalled = len(self.prices) == 0
        self.restarts = 0
        self.rounds = 0

    def ascend(self, cost: float, stop: np.ndarray) -> tuple[float, np.ndarray]:
        """One round towards `cost`, the best known. Returns the bound and the best prices."""
        if self.rounds == 0:
            self._step(0.0, 1, stop)
        before = self.state[BOUND]
        if not np.isfinite(before):  # stopped before the end of the first step
            return float(before), self.best_prices.copy()
        # Far from `cost`, a target slightly above the bound gives better steps.
        target = min(cost, before + 0.1 * abs(before) + 1.0)
        if self.stalled:
            self.restarts += 1
            self.state[FACTOR] = 0.1
            self.stalled = False
        self._step(target, _STEPS, stop)
        self.rounds += 1
        rise = self.state[BOUND] - before
        if rise <= _STALLED * abs(self.state[BOUND]) and (self.state[FACTOR] < 1e-2 or rise == 0):
            self.stalled = True
        return float(self.state[BOUND]), self.best_prices.copy()

    def _step(self, target: float, steps: int, stop: np.ndarray) -> None:
        ascend(
            self.a, self.offset, self.messages, self.prices, self.direction, self.best_messages,
            self.best_prices, self.state, target, steps, self.decoded, stop,
        )  # fmt: skip

    def slacks(self) -> tuple[float, np.ndarray]:
        """The bound at the best prices, and a lower bound on how much each choice raises it."""
        theta, slack = np.empty(len(self.a.cost)), np.empty(len(self.a.cost))
        price_nodes(self.a, self.best_prices, theta)
        x = np.zeros(len(self.a.k), np.int64)
        bound = sweep(self.a, theta, self.a.tables, self.best_messages, self.offset, x, False)
        bound -= float(self.best_prices @ self.a.capacity)
        slacks(self.a, theta, self.a.tables, self.best_messages, self.offset, slack)
        return bound, slack
