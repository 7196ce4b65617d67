"""Placements, rows, and the local shards of a tensor.

Placements are PyTorch's own classes; this room adds their text form, `Row`, and splitting and joining of tensors
exactly as DTensor does it.
"""

from ._dtypes import is_float8, partials_of
from ._pieces import join, piece_sizes, shard_sizes, split
from ._row import SHARDS, Row, Shards, fewest_shards, split_terms
from ._text import (
    PARTIALS,
    AnyShard,
    is_partial,
    is_replicate,
    is_shard,
    not_known,
    parse_placement,
    partial,
    placement_text,
    shard,
)

__all__ = [
    "PARTIALS",
    "SHARDS",
    "AnyShard",
    "Row",
    "Shards",
    "fewest_shards",
    "is_float8",
    "is_partial",
    "is_replicate",
    "is_shard",
    "join",
    "not_known",
    "parse_placement",
    "partial",
    "partials_of",
    "piece_sizes",
    "placement_text",
    "shard",
    "shard_sizes",
    "split",
    "split_terms",
]
