"""Reductions that preserve the optimum: from the problem to a kernel, and from a solution of the kernel back.

Every step is exact for any memory prices, so they are applied once, to a fixed point, before the search
(`docs/solver.md` explains why each is exact). The steps themselves are compiled, in `_reduce_ops`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import _work as work
from ._kernel import Kernel
from ._points import binding, maximal_points, ranges
from ._problem import FORBIDDEN, Problem
from ._reduce_ops import reduce_to_fixpoint

_COUNTED = {
    "single-choice or isolated nodes fixed": work.FIXED,
    "forbidden choices": work.FORBIDDEN_CHOICES,
    "parallel edges merged": work.PARALLEL,
    "separable edges dropped": work.SEPARABLE,
    "nodes merged into one that determines them": work.MERGED,
    "nodes of degree 1 folded": work.FOLDED,
    "nodes of degree 2 eliminated": work.ELIMINATED,
    "dominated choices": work.DOMINATED,
}


@dataclass(frozen=True, eq=False)
class Reduction:
    """A kernel with the same optimum as the problem, and the mapping back.

    `kernel` is None if the forbidden pairs or the memory limit leave no choice; `stuck` is then a node without a
    choice, or `overflow` the time at which the smallest usages exceed the limit.
    """

    problem: Problem
    kernel: Kernel | None
    counts: dict[str, int]
    stuck: int | None
    overflow: int | None
    _work: work.Work
    _log: np.ndarray

    def expand(self, kernel_choice: np.ndarray) -> np.ndarray:
        """The choice per node of the problem for a choice per node of the kernel."""
        assert self.kernel is not None
        choice = np.full(self.problem.nodes, -1, np.int64)
        nodes = self.kernel.node
        choice[nodes] = self._work.orig[self._work.node["start"][nodes] + kernel_choice]
        work.undo(self._work.records, self._work.counts[work.RECORDS], self._log, choice)
        return choice

    def allowed(self, keep: np.ndarray) -> np.ndarray:
        """Flags per choice of the problem for `keep`, flags per choice of the kernel."""
        assert self.kernel is not None
        flags = np.ones(len(self.problem.costs), bool)
        a, first = self.kernel.arrays, self.problem.choice_start
        for i, node in enumerate(self.kernel.node):
            flags[first[node] : first[node + 1]] = False
            s = self._work.node["start"][node]
            flags[first[node] + self._work.orig[s : s + a.k[i]]] = keep[a.start[i] : a.start[i + 1]]
        return flags

    def restrict(self, choice: np.ndarray) -> np.ndarray | None:
        """The kernel's choice for a choice per node of the problem; None if it has a removed choice."""
        assert self.kernel is not None
        picked = np.empty(len(self.kernel.node), np.int64)
        for i, node in enumerate(self.kernel.node):
            s = self._work.node["start"][node]
            at = np.flatnonzero(self._work.orig[s : s + self._work.node["k"][node]] == choice[node])
            if not len(at):
                return None
            picked[i] = at[0]
        return picked


STAGES = {
    "forbidden and single choices": 0,
    "separable edges": work.STEP_SEPARATE,
    "merging determined nodes": work.STEP_MERGE,
    "elimination of low degree": work.STEP_ELIMINATE,
    "dominated choices": work.STEP_DOMINATE,
}
"""The steps in the order in which `watch` observes them; each stage includes the previous ones."""

_ALL_STEPS = sum(STAGES.values())


def reduce(
    problem: Problem,
    *,
    most_eliminated: int = 4096,
    allowed: np.ndarray | None = None,
    watch: Callable[[str, Kernel], None] | None = None,
) -> Reduction:
    """Reduce to a fixed point.

    Nodes of degree two are eliminated while the new table has at most `most_eliminated` entries (or is no
    larger than the tables it replaces). `allowed` has a flag per choice of the problem. With `watch` the steps are
    added one after the other and `watch` is called with the kernel after each; parallel edges are merged first.
    """
    w, tables = _work(problem)
    if allowed is not None:
        w.cost[~allowed] = np.inf
    points = maximal_points(problem.intervals)
    w.item["lo"], w.item["hi"] = ranges(points, problem.intervals)
    w = w._replace(base=np.zeros(len(points) + 1, np.int64))
    usages = problem.usages.copy()
    work.begin(w, tables, usages)
    state = _State(problem, w, tables, usages, np.empty(4 * problem.nodes + 1024, np.int32), points)
    if watch is None:
        return state.reduce(_ALL_STEPS, most_eliminated) or state.end()
    watch("as given", state.kernel())
    steps = 0
    for name, step in STAGES.items():
        steps += step
        ended = state.reduce(steps, most_eliminated)
        if ended is not None:
            return ended
        watch(name, state.kernel())
        work.queue_all(state.w)
    return state.end()


class _State:
    """The working problem between compiled runs: pools move, points are renumbered."""

    def __init__(self, problem: Problem, w: work.Work, tables, usages, log, points) -> None:
        self.problem, self.w, self.points = problem, w, points
        self.tables, self.usages, self.log = tables, usages, log

    def capacity(self) -> np.ndarray:
        return self.problem.usage_limit - np.cumsum(self.w.base)[: len(self.points)]

    def bind(self) -> int | None:
        """Renumber the points that can bind. Returns the time of a point that must overflow, if any."""
        capacity = self.capacity()
        if len(capacity) and capacity.min() < 0:
            return int(self.points[np.argmin(capacity)])
        most = np.zeros(len(self.w.item["lo"]), np.int64)
        work.largest_usages(self.w, self.usages, most)
        used = most > 0
        keep = binding(self.w.item["lo"][used], self.w.item["hi"][used], most[used], capacity)
        number = np.concatenate([[0], np.cumsum(keep)])
        self.w.item["lo"][:] = number[self.w.item["lo"]]
        self.w.item["hi"][:] = number[self.w.item["hi"]]
        load = (self.problem.usage_limit - capacity)[keep]
        self.points = self.points[keep]
        self.w = self.w._replace(base=np.diff(load, prepend=0, append=0))
        work.settle_all(self.w, self.usages)
        return None

    def reduce(self, steps: int, most_eliminated: int) -> Reduction | None:
        """Apply `steps` to a fixed point, time points included. Returns the result if no choice is left."""
        while True:
            overflow = self.bind()
            if overflow is not None:
                return self.end(overflow=overflow)
            self.tables, self.usages, self.log, stuck = reduce_to_fixpoint(
                self.w, self.tables, self.usages, self.log, steps, most_eliminated
            )
            if stuck >= 0:
                return self.end(stuck=int(stuck))
            if not self.dropped_points():
                return None

    def dropped_points(self) -> bool:
        """True if fewer points can bind than before the last step."""
        capacity = self.capacity()
        if len(capacity) and capacity.min() < 0:
            return True
        most = np.zeros(len(self.w.item["lo"]), np.int64)
        work.largest_usages(self.w, self.usages, most)
        used = most > 0
        return not binding(self.w.item["lo"][used], self.w.item["hi"][used], most[used], capacity).all()

    def kernel(self) -> Kernel:
        return Kernel.of(self.w, self.tables, self.usages, self.capacity(), self.points)

    def end(self, *, stuck: int | None = None, overflow: int | None = None) -> Reduction:
        counts = {name: int(self.w.counts[slot]) for name, slot in _COUNTED.items()}
        kernel = self.kernel() if stuck is None and overflow is None else None
        return Reduction(self.problem, kernel, counts, stuck, overflow, self.w, self.log)


def _work(problem: Problem) -> tuple[work.Work, np.ndarray]:
    n, m = problem.nodes, len(problem.edges)
    k = np.diff(problem.choice_start)
    tables = np.empty(len(problem.tables) + 1024, np.float64)
    tables[: len(problem.tables)] = problem.tables
    tables[: len(problem.tables)][problem.tables >= FORBIDDEN] = np.inf
    cost = problem.costs.astype(np.float64)
    cost[problem.costs >= FORBIDDEN] = np.inf
    counts = np.zeros(work.COUNTS, np.int64)
    counts[work.TABLES_USED] = len(problem.tables)
    counts[work.USAGES_USED] = len(problem.usages)
    size = max(n, m, 1)
    node = np.zeros(n, work.NODE)
    node["k"], node["start"], node["item"], node["alive"] = k, problem.choice_start[:-1], np.arange(n), True
    node["head"] = node["mark"] = -1
    half = np.full(2 * m, -1, np.int64).repeat(3).view(work.HALF)
    half["end"] = problem.edges.reshape(-1)
    edge = np.zeros(m, work.EDGE)
    edge["offset"], edge["alive"] = problem.table_start[:-1], True
    item = np.zeros(n, work.ITEM)
    item["offset"], item["next"] = problem.choice_start[:-1], -1
    w = work.Work(
        node=node,
        cost=cost,
        orig=(np.arange(len(cost)) - np.repeat(problem.choice_start[:-1], k)).astype(np.int32),
        half=half,
        edge=edge,
        item=item,
        base=np.zeros(1, np.int64),
        records=np.zeros((n, 4), np.int64),
        counts=counts,
        queued=np.zeros((3, size), bool),
        queue=np.zeros((3, size), np.int64),
        queue_ends=np.zeros((3, 2), np.int64),
    )
    return w, tables
