"""The optimisation problem as plain arrays, its reductions, and the search for the cheapest solution.

Importing the room is fast; compiled code is loaded by the first call.
"""

from typing import TYPE_CHECKING, Any

from ._evaluate import Evaluation, evaluate
from ._linear import CAN_PROVE, Row, maximum
from ._prepare import prepare
from ._problem import FORBIDDEN, Problem, read_problem
from ._solution import Improvement, Shortfall, Solution
from ._solve import least_memory, solve
from ._threads import in_time

if TYPE_CHECKING:
    from ._compiled import compiled
    from ._reduce import Reduction, reduce

__all__ = [
    "CAN_PROVE",
    "FORBIDDEN",
    "Evaluation",
    "Improvement",
    "Problem",
    "Reduction",
    "Row",
    "Shortfall",
    "Solution",
    "compiled",
    "evaluate",
    "in_time",
    "least_memory",
    "maximum",
    "prepare",
    "read_problem",
    "reduce",
    "solve",
]


def __getattr__(name: str) -> Any:
    if name in ("Reduction", "reduce"):
        from . import _reduce

        return getattr(_reduce, name)
    if name == "compiled":
        from ._compiled import compiled

        return compiled
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
