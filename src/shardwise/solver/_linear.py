"""Linear programs, for what is not a choice between alternatives."""

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

# Where HiGHS is not installed, optimality is proven by bounds and reductions alone.
CAN_PROVE = find_spec("highspy") is not None

# A row of a program: the columns that it has, and their factors.
Row = tuple[Sequence[int], Sequence[float]]


def maximum(
    objective: np.ndarray, rows: Sequence[Row], limits: Sequence[float], upper: np.ndarray
) -> np.ndarray:
    """The columns, each between 0 and its upper limit, for which the objective is largest and no row exceeds its limit.

    HiGHS is needed (`CAN_PROVE`).
    """
    import highspy

    lengths = [len(columns) for columns, _ in rows]
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(objective), len(rows)
    lp.col_cost_ = objective
    lp.col_lower_, lp.col_upper_ = np.zeros(len(objective)), upper
    lp.row_lower_, lp.row_upper_ = np.full(len(rows), -highspy.kHighsInf), np.array(limits, float)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(lengths)])
    lp.a_matrix_.index_ = np.concatenate([np.asarray(columns, np.int64) for columns, _ in rows])
    lp.a_matrix_.value_ = np.concatenate([np.asarray(factors, float) for _, factors in rows])
    lp.sense_ = highspy.ObjSense.kMaximize
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.passModel(lp)
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return np.array(solver.getSolution().col_value)
