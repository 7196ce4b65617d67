"""Communication between workers: best solution, bound, prices; one slot per worker, merged in a fixed order.

With a number of rounds instead of a time limit all workers wait for each other between rounds, so that what a worker
sees depends only on the seed and not on thread timing.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class View:
    """Kernel choice and its cost (infinite without one), bound and prices. Costs exclude the constant."""

    choice: np.ndarray | None = None
    cost: float = np.inf
    bound: float = -np.inf
    prices: np.ndarray | None = None
    priced: float = -np.inf  # the bound at these prices
    proven: bool = False  # nothing better than `cost` exists

    def better(self, other: "View") -> "View":
        """The best of both; the first wins ties."""
        mine, prices = (
            (self if self.cost <= other.cost else other),
            (self if self.priced >= other.priced else other),
        )
        return View(
            mine.choice,
            mine.cost,
            max(self.bound, other.bound),
            prices.prices,
            prices.priced,
            self.proven or other.proven,
        )


class Exchange:
    """Slots of all workers, the common stop flag and the history of improvements."""

    def __init__(self, workers: int, in_step: bool, closed: Callable[[View], bool]) -> None:
        self.stop = np.zeros(1, np.int64)
        self.changed = threading.Event()
        self._slots = [View()] * workers
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(workers) if in_step and workers > 1 else None
        self._closed = closed

    def tell(self, worker: int, view: View) -> None:
        with self._lock:
            before = self._slots[worker]
            self._slots[worker] = before.better(view)
        if view.cost < before.cost or view.bound > before.bound:
            self.changed.set()

    def view(self) -> View:
        with self._lock:
            slots = list(self._slots)
        merged = slots[0]
        for slot in slots[1:]:
            merged = merged.better(slot)
        if merged.bound > merged.cost:
            merged = replace(merged, bound=merged.cost)
        return merged

    def meet(self) -> View:
        """The view between two rounds, the same for all synchronised workers."""
        if self._barrier is None:
            merged = self.view()
        else:
            self._barrier.wait()
            merged = self.view()
            self._barrier.wait()
        if merged.proven or self._closed(merged):
            self.halt()
        return merged

    def leave(self) -> None:
        """A worker ended: the others no longer wait for it."""
        if self._barrier is not None:
            self._barrier.abort()
        self.changed.set()

    def halt(self) -> None:
        self.stop[0] = 1
        self.changed.set()

    @property
    def halted(self) -> bool:
        return bool(self.stop[0])

    def wait(self, seconds: float) -> None:
        """Wait until something changes or the time is up."""
        self.changed.wait(seconds)
        self.changed.clear()
