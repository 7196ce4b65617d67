"""The kernel as a mixed-integer program for HiGHS, which proves optimality of small kernels.

One binary variable per choice, one continuous variable per allowed pair of an edge (the local polytope, whose
relaxation is the bound that message passing approaches), one row per time point, scaled to a capacity of one.
Rows of time points are added when a solution overflows them, since few of thousands bind.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ._kernel import BIG, Kernel
from ._pricing import load_of


@dataclass(frozen=True)
class Proof:
    """`choice` is the best one found (or None), `bound` a lower bound; costs exclude the constant."""

    status: str  # optimal, infeasible, stopped
    choice: np.ndarray | None
    bound: float


def size_of(kernel: Kernel) -> int:
    """The number of variables of the program."""
    k = kernel.arrays.k
    ends = kernel.arrays.ends
    return int(k.sum() + (k[ends[:, 0]] * k[ends[:, 1]]).sum())


def prove(
    kernel: Kernel,
    seconds: float,
    stopped: Callable[[], bool],
    most_nodes: int | None,
) -> Proof:
    """Solve to optimality, unless ended by the time limit, the node limit or `stopped`."""
    if kernel.nodes == 0:
        return Proof("optimal", np.zeros(0, np.int64), 0.0)
    program = _Program(kernel, seconds, stopped, most_nodes)
    rows = program.few_points()
    bound = -np.inf
    while True:
        status, choice, dual = program.run(rows)
        bound = max(bound, dual)
        if choice is None:
            return Proof(status, None, bound)
        load = np.zeros(len(kernel.points), np.int64)
        load_of(kernel.arrays, choice, load)
        over = load - kernel.arrays.capacity
        if not len(over) or over.max() <= 0:
            return Proof(status, choice, bound)
        if status != "optimal":
            return Proof(status, None, bound)
        fresh = program.worst_points(over, rows)
        if not len(fresh):
            # The overflow is within the tolerance of the program: its optimum is a bound but not a solution.
            return Proof("stopped", None, bound)
        rows = np.union1d(rows, fresh)


class _Program:
    def __init__(
        self, kernel: Kernel, seconds: float, stopped: Callable[[], bool], most_nodes: int | None
    ) -> None:
        self.kernel, self.stopped = kernel, stopped
        self.left = seconds
        self.most_nodes = most_nodes
        a = kernel.arrays
        self.choices = int(a.k.sum())
        columns: list[np.ndarray] = [a.cost]
        rows_of: list[np.ndarray] = []
        values: list[np.ndarray] = []
        indices: list[np.ndarray] = []
        column = self.choices
        nodes = len(a.k)
        for v in range(nodes):
            indices.append(np.arange(a.start[v], a.start[v + 1]))
            values.append(np.ones(a.k[v]))
            rows_of.append(np.array([a.k[v]]))
        equal = [np.ones(nodes)]
        for e in range(len(a.ends)):
            u, v = a.ends[e]
            ku, kv = int(a.k[u]), int(a.k[v])
            table = a.tables[a.table[2 * e] : a.table[2 * e] + ku * kv].reshape(kv, ku).T
            allowed = np.argwhere(table < BIG / 2)
            number = column + np.arange(len(allowed))
            columns.append(table[allowed[:, 0], allowed[:, 1]])
            column += len(allowed)
            for side, (w, count) in enumerate(((u, ku), (v, kv))):
                for c in range(count):
                    mine = number[allowed[:, side] == c]
                    indices.append(np.append(mine, a.start[w] + c))
                    values.append(np.append(np.ones(len(mine)), -1.0))
                    rows_of.append(np.array([len(mine) + 1]))
                equal.append(np.zeros(count))
        self.columns = column
        self.cost = np.concatenate(columns)
        self.index = np.concatenate(indices) if indices else np.zeros(0, np.int64)
        self.value = np.concatenate(values) if values else np.zeros(0)
        self.length = np.concatenate(rows_of) if rows_of else np.zeros(0, np.int64)
        self.right = np.concatenate(equal)

    def few_points(self) -> np.ndarray:
        return np.arange(len(self.kernel.points)) if len(self.kernel.points) <= 64 else np.zeros(0, np.int64)

    def worst_points(self, over: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Points to add: the peaks of overflow, at most 32, without those already added."""
        over = over.copy()
        over[known] = 0
        found: list[int] = []
        while len(found) < 32 and over.max() > 0:
            t = int(np.argmax(over))
            found.append(t)
            near = max(1, len(over) // 64)
            over[max(0, t - near) : t + near] = 0
        return np.array(found, np.int64)

    def _memory_rows(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        a = self.kernel.arrays
        owner = np.repeat(np.arange(len(a.k)), np.diff(a.item_first))
        indices, values, lengths = [], [], []
        for t in points:
            row = np.zeros(self.choices)
            for i in np.flatnonzero((a.item_lo <= t) & (t < a.item_hi)):
                v = owner[i]
                row[a.start[v] : a.start[v + 1]] += a.usage[a.item_offset[i] : a.item_offset[i] + a.k[v]]
            used = np.flatnonzero(row)
            indices.append(used)
            values.append(row[used] / max(float(a.capacity[t]), 1.0))
            lengths.append(len(used))
        if not indices:
            return np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64)
        return np.concatenate(indices), np.concatenate(values), np.array(lengths)

    def run(self, points: np.ndarray) -> tuple[str, np.ndarray | None, float]:
        import highspy

        a = self.kernel.arrays
        index, value, length = self._memory_rows(points)
        right = np.minimum(a.capacity[points], 1).astype(float)
        lp = highspy.HighsLp()
        lp.num_col_ = self.columns
        lp.num_row_ = len(self.length) + len(length)
        lp.col_cost_ = self.cost
        lp.col_lower_ = np.zeros(self.columns)
        lp.col_upper_ = np.ones(self.columns)
        lp.row_lower_ = np.concatenate([self.right, np.full(len(length), -highspy.kHighsInf)])
        lp.row_upper_ = np.concatenate([self.right, right])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.concatenate(
            [[0], np.cumsum(self.length), self.length.sum() + np.cumsum(length)]
        )
        lp.a_matrix_.index_ = np.concatenate([self.index, index])
        lp.a_matrix_.value_ = np.concatenate([self.value, value])
        integer, continuous = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [integer] * self.choices + [continuous] * (self.columns - self.choices)
        solver = highspy.Highs()
        solver.silent()
        for option, setting in (("threads", 1), ("mip_rel_gap", 0.0), ("mip_abs_gap", 0.5)):
            solver.setOptionValue(option, setting)
        solver.setOptionValue("time_limit", max(self.left, 0.0))
        if self.most_nodes is not None:
            solver.setOptionValue("mip_max_nodes", self.most_nodes)
        solver.passModel(lp)

        def interrupt(event) -> None:
            if self.stopped():
                event.interrupt()

        solver.cbMipInterrupt += interrupt
        solver.cbSimplexInterrupt += interrupt
        before = solver.getRunTime()
        solver.run()
        self.left -= solver.getRunTime() - before
        status = solver.getModelStatus()
        info = solver.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return "infeasible", None, np.inf
        choice = None
        if info.primal_solution_status == 2:
            shares = np.array(solver.getSolution().col_value[: self.choices])
            choice = np.array([int(np.argmax(shares[a.start[v] : a.start[v + 1]])) for v in range(len(a.k))])
        bound = info.mip_dual_bound if np.isfinite(info.mip_dual_bound) else -np.inf
        return ("optimal" if status == highspy.HighsModelStatus.kOptimal else "stopped"), choice, bound
