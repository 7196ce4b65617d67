"""Rules written by hand, for what clauses cannot say: groups of dims, local forms, random numbers.

Each is a function from a call to rows, tested by the same experiments as every other rule (`tests/rules/test_hand.py`).
"""

from . import (  # noqa: F401  (they register the rules)
    _along,
    _attention,
    _convolution,
    _copies,
    _distances,
    _experts,
    _factories,
    _fourier,
    _histograms,
    _lookup,
    _losses,
    _norms,
    _pointwise,
    _products,
    _random,
    _scatter,
    _views,
    _windows,
)
from ._register import (
    HandRule,
    hand,
    hand_rows,
    hand_written,
    is_by_hand,
    more_rows,
    own_rules,
    rows_besides,
)
from ._rows import row_of

__all__ = [
    "HandRule",
    "hand",
    "hand_rows",
    "hand_written",
    "is_by_hand",
    "more_rows",
    "own_rules",
    "row_of",
    "rows_besides",
]
