"""From rows for one mesh axis to combinations for a whole mesh, and the cheapest of them."""

from ._expand import Combination, NoCombination, cheapest, expand, sizes_fit
from ._fill import fill

__all__ = ["Combination", "NoCombination", "cheapest", "expand", "fill", "sizes_fit"]
