"""Reductions that keep the optimum: from the problem to a kernel, and from a solution of the kernel back.

Every step is exact whatever the memory prices will be, so they are applied once, to a fixpoint, before the
search (`docs/solver.md` says why each is exact). The steps themselves are compiled, in `_reduce_ops`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import _reduce_ops as ops
from ._kernel import Kernel
from ._points import binding, maximal_points, ranges
from ._problem import FORBIDDEN, Problem

_COUNTED = {
    "single-choice or isolated nodes fixed": ops.FIXED,
    "forbidden choices": ops.FORBIDDEN_CHOICES,
    "parallel edges merged": ops.PARALLEL,
    "separable edges dropped": ops.SEPARABLE,
    "nodes merged into one that determines them": ops.MERGED,
    "nodes of degree 1 folded": ops.FOLDED,
    "nodes of degree 2 eliminated": ops.ELIMINATED,
    "dominated choices": ops.DOMINATED,
}


@dataclass(frozen=True, eq=False)
class Reduction:
    """A kernel with the same optimum as the problem, and the way back.

    `kernel` is None when the forbidden pairs or the memory leave no choice; `stuck` then names a node where
    this showed, or `overflow` the time at which the smallest usages exceed the limit.
    """

    problem: Problem
    kernel: Kernel | None
    counts: dict[str, int]
    stuck: int | None
    overflow: int | None
    _work: ops.Work
    _log: np.ndarray

    def expand(self, kernel_choice: np.ndarray) -> np.ndarray:
        """The choice per node of the problem for a choice per node of the kernel."""
        assert self.kernel is not None
        choice = np.full(self.problem.nodes, -1, np.int64)
        nodes = self.kernel.node
        choice[nodes] = self._work.orig[self._work.start[nodes] + kernel_choice]
        ops.undo(self._work.records, self._work.counts[ops.RECORDS], self._log, choice)
        return choice

    def allowed(self, keep: np.ndarray) -> np.ndarray:
        """Flags per choice of the problem for `keep`, flags per choice of the kernel."""
        assert self.kernel is not None
        flags = np.ones(len(self.problem.costs), bool)
        a, first = self.kernel.arrays, self.problem.choice_start
        for i, node in enumerate(self.kernel.node):
            flags[first[node] : first[node + 1]] = False
            s = self._work.start[node]
            flags[first[node] + self._work.orig[s : s + a.k[i]]] = keep[a.start[i] : a.start[i + 1]]
        return flags

    def restrict(self, choice: np.ndarray) -> np.ndarray | None:
        """The kernel's choice for a choice per node of the problem; None if it holds a removed choice."""
        assert self.kernel is not None
        picked = np.empty(len(self.kernel.node), np.int64)
        for i, node in enumerate(self.kernel.node):
            s = self._work.start[node]
            at = np.flatnonzero(self._work.orig[s : s + self._work.k[node]] == choice[node])
            if not len(at):
                return None
            picked[i] = at[0]
        return picked


def reduce(
    problem: Problem,
    *,
    dominance: bool = True,
    most_eliminated: int = 4096,
    memory: bool = True,
    allowed: np.ndarray | None = None,
    watch: Callable[[str, Kernel], None] | None = None,
) -> Reduction:
    """Reduce to a fixpoint.

    `memory=False` leaves the memory limit out, `allowed` holds a flag per choice of the problem, and `watch`
    sees the kernel in between.
    """
    w, tables = _work(problem)
    if allowed is not None:
        w.cost[~allowed] = np.inf
    count = problem.nodes
    usages = problem.usages.copy()
    log = np.empty(4 * count + 1024, np.int32)
    points = maximal_points(problem.intervals) if memory else np.zeros(0, np.int64)
    low, high = ranges(points, problem.intervals)
    w.item_lo[:], w.item_hi[:] = low, high
    w = w._replace(base=np.zeros(len(points) + 1, np.int64))
    ops.begin(w, tables, usages)
    state = _State(problem, w, tables, usages, log, points)
    if watch:
        watch("as given", state.kernel())
    stages = (
        [("exact steps without dominance", False), ("dominated choices", True)]
        if watch
        else [("", dominance)]
    )
    for name, dominated in stages:
        while True:
            overflow = state.bind()
            if overflow is not None:
                return state.end(overflow=overflow)
            stuck = state.step(dominated, most_eliminated)
            if stuck >= 0:
                return state.end(stuck=int(stuck))
            if not state.dropped_points():
                break
        if watch:
            watch(name, state.kernel())
    return state.end()


class _State:
    """The working problem between compiled runs: pools move, points are renumbered."""

    def __init__(self, problem: Problem, w: ops.Work, tables, usages, log, points) -> None:
        self.problem, self.w, self.points = problem, w, points
        self.tables, self.usages, self.log = tables, usages, log

    def capacity(self) -> np.ndarray:
        return self.problem.usage_limit - np.cumsum(self.w.base)[: len(self.points)]

    def bind(self) -> int | None:
        """Renumber to the points that can bind. The time of a point that must overflow, if any."""
        capacity = self.capacity()
        if len(capacity) and capacity.min() < 0:
            return int(self.points[np.argmin(capacity)])
        most = np.zeros(len(self.w.item_lo), np.int64)
        ops.largest_usages(self.w, self.usages, most)
        used = most > 0
        keep = binding(self.w.item_lo[used], self.w.item_hi[used], most[used], capacity)
        number = np.concatenate([[0], np.cumsum(keep)])
        self.w.item_lo[:] = number[self.w.item_lo]
        self.w.item_hi[:] = number[self.w.item_hi]
        load = (self.problem.usage_limit - capacity)[keep]
        self.points = self.points[keep]
        self.w = self.w._replace(base=np.diff(load, prepend=0, append=0))
        ops.settle_all(self.w, self.usages)
        return None

    def step(self, dominance: bool, most_eliminated: int) -> int:
        self._before = len(self.points)
        self.tables, self.usages, self.log, stuck = ops.reduce_to_fixpoint(
            self.w, self.tables, self.usages, self.log, dominance, most_eliminated
        )
        return stuck

    def dropped_points(self) -> bool:
        """Whether fewer points can bind than before the last step."""
        capacity = self.capacity()
        if len(capacity) and capacity.min() < 0:
            return True
        most = np.zeros(len(self.w.item_lo), np.int64)
        ops.largest_usages(self.w, self.usages, most)
        used = most > 0
        return not binding(self.w.item_lo[used], self.w.item_hi[used], most[used], capacity).all()

    def kernel(self) -> Kernel:
        return Kernel.of(self.w, self.tables, self.usages, self.capacity(), self.points)

    def end(self, *, stuck: int | None = None, overflow: int | None = None) -> Reduction:
        counts = {name: int(self.w.counts[slot]) for name, slot in _COUNTED.items()}
        kernel = self.kernel() if stuck is None and overflow is None else None
        return Reduction(self.problem, kernel, counts, stuck, overflow, self.w, self.log)


def _work(problem: Problem) -> tuple[ops.Work, np.ndarray]:
    n, m = problem.nodes, len(problem.edges)
    k = np.diff(problem.choice_start)
    tables = np.empty(len(problem.tables) + 1024, np.float64)
    tables[: len(problem.tables)] = problem.tables
    tables[: len(problem.tables)][problem.tables >= FORBIDDEN] = np.inf
    cost = problem.costs.astype(np.float64)
    cost[problem.costs >= FORBIDDEN] = np.inf
    counts = np.zeros(ops.COUNTS, np.int64)
    counts[ops.TABLES_USED] = len(problem.tables)
    counts[ops.USAGES_USED] = len(problem.usages)
    size = max(n, m, 1)
    w = ops.Work(
        k=k.copy(),
        start=problem.choice_start[:-1].copy(),
        cost=cost,
        orig=(np.arange(len(cost)) - np.repeat(problem.choice_start[:-1], k)).astype(np.int32),
        alive=np.ones(n, bool),
        degree=np.zeros(n, np.int64),
        head=np.full(n, -1, np.int64),
        item=np.arange(n),
        end=problem.edges.reshape(-1).copy(),
        next=np.full(2 * m, -1, np.int64),
        prev=np.full(2 * m, -1, np.int64),
        offset=problem.table_start[:-1].copy(),
        edge_alive=np.ones(m, bool),
        item_lo=np.empty(n, np.int64),
        item_hi=np.empty(n, np.int64),
        item_offset=problem.choice_start[:-1].copy(),
        item_next=np.full(n, -1, np.int64),
        base=np.zeros(1, np.int64),
        records=np.zeros((n, 4), np.int64),
        counts=counts,
        queued=np.zeros((3, size), bool),
        queue=np.zeros((3, size), np.int64),
        queue_ends=np.zeros((3, 2), np.int64),
        mark=np.full(n, -1, np.int64),
    )
    return w, tables
