"""Redistribution: the cheapest chain of collectives from one layout to another, and its price."""

from ._bucket import BUCKET, JOINED, bucket_seconds, is_small, least_seconds
from ._chain import Chain, Prices, Step, cheapest_chain, price, price_table, space_of
from ._parcels import Box, Parcel, held, parcels, views
from ._space import Space
from ._steps import KINDS

__all__ = [
    "BUCKET",
    "JOINED",
    "KINDS",
    "Box",
    "Chain",
    "Parcel",
    "Prices",
    "Space",
    "Step",
    "bucket_seconds",
    "cheapest_chain",
    "held",
    "is_small",
    "least_seconds",
    "parcels",
    "price",
    "price_table",
    "space_of",
    "views",
]
