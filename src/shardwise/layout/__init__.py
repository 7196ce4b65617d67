"""How a tensor is distributed over a mesh: layouts, one placement per axis, and shardings, a list of axes per dim."""

from ._axes import AxisRef, append_axis, is_prefix, is_strict_prefix
from ._layout import IDENTITY, Layout, mixes_partials, piece_sizes
from ._picture import picture
from ._runs import Run, between, common, length
from ._sharding import DimSharding, Sharding, layouts_of

__all__ = [
    "IDENTITY",
    "AxisRef",
    "DimSharding",
    "Layout",
    "Run",
    "Sharding",
    "append_axis",
    "between",
    "common",
    "is_prefix",
    "is_strict_prefix",
    "layouts_of",
    "length",
    "mixes_partials",
    "picture",
    "piece_sizes",
]
