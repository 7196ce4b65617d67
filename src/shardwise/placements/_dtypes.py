"""The partial placements that a dtype allows."""

from collections.abc import Iterable

import torch
from torch.distributed.tensor.placement_types import Placement

from ._text import partial


def is_float8(dtype: torch.dtype) -> bool:
    """True for 8-bit floats, which torch only converts and multiplies."""
    return dtype.is_floating_point and dtype.itemsize == 1


def partials_of(dtype: torch.dtype, reductions: Iterable[str]) -> list[Placement]:
    """Those of the reductions that are defined for a dtype: none for bool and 8-bit floats, no average of integers, no
    maximum or minimum of complex numbers."""
    if dtype == torch.bool or is_float8(dtype):
        return []
    lacks = ("max", "min") if dtype.is_complex else () if dtype.is_floating_point else ("avg",)
    return [partial(reduction) for reduction in reductions if reduction not in lacks]
