"""Redistribution: the cheapest chain of collectives from one layout to another, and its price."""

from ._chain import Chain, Prices, Step, cheapest_chain, price, price_table, space_of
from ._parcels import Box, Parcel, held, parcels, views
from ._space import Space
from ._steps import KINDS

__all__ = [
    "KINDS",
    "Box",
    "Chain",
    "Parcel",
    "Prices",
    "Space",
    "Step",
    "cheapest_chain",
    "held",
    "parcels",
    "price",
    "price_table",
    "space_of",
    "views",
]
