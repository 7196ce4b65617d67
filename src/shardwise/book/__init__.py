"""Building the rule book of ATen: every operator that can be reached, studied by experiment."""

from ._build import build
from ._diff import Difference, diff
from ._learn import learn
from ._reach import Reached, reach

__all__ = ["Difference", "Reached", "build", "diff", "learn", "reach"]
