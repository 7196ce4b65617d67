"""Redistribution: the cheapest chain of collectives from one layout to another, and its price."""

from ._chain import Chain, Prices, Step, cheapest_chain, price, price_table, space_of
from ._space import Space
from ._steps import KINDS

__all__ = ["KINDS", "Chain", "Prices", "Space", "Step", "cheapest_chain", "price", "price_table", "space_of"]
