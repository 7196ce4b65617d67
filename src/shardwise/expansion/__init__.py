"""From rows for one mesh axis to choices for a whole mesh, and the cheapest of them."""

from ._choice import Choice, Combinations, is_valid, is_valid_for
from ._expand import NoChoice, Priced, cheapest, expand
from ._fill import fill

__all__ = [
    "Choice",
    "Combinations",
    "NoChoice",
    "Priced",
    "cheapest",
    "expand",
    "fill",
    "is_valid",
    "is_valid_for",
]
