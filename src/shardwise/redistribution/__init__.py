"""From layout to layout: the cheapest chain of collectives, and its price."""

from ._plan import Plan, Prices, Step, plan, price, price_table, space_of
from ._space import Space
from ._steps import KINDS

__all__ = ["KINDS", "Plan", "Prices", "Space", "Step", "plan", "price", "price_table", "space_of"]
