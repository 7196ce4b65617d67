"""How a tensor lies on a mesh: layouts, one placement per axis, and shardings, the same seen from the tensor's dims."""

from ._axes import AxisRef, append_axis, is_prefix, is_strict_prefix
from ._layout import IDENTITY, Layout, Run, mixes_partials, piece_sizes
from ._picture import picture
from ._sharding import DimSharding, Sharding, layouts_of

__all__ = [
    "IDENTITY",
    "AxisRef",
    "DimSharding",
    "Layout",
    "Run",
    "Sharding",
    "append_axis",
    "is_prefix",
    "is_strict_prefix",
    "layouts_of",
    "mixes_partials",
    "picture",
    "piece_sizes",
]
