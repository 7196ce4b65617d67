"""What a dtype allows: which partials it has."""

from collections.abc import Iterable

import torch
from torch.distributed.tensor.placement_types import Placement

from ._text import partial


def is_float8(dtype: torch.dtype) -> bool:
    """True for the floats of 8 bits, which torch converts and multiplies, and nothing else."""
    return dtype.is_floating_point and dtype.itemsize == 1


def partials_of(dtype: torch.dtype, reductions: Iterable[str]) -> list[Placement]:
    """Those of the reductions that make sense for a dtype: none for bool and floats of 8 bits, in which nothing is
    reduced, no average of integers, no order of complex numbers."""
    if dtype == torch.bool or is_float8(dtype):
        return []
    lacks = ("max", "min") if dtype.is_complex else () if dtype.is_floating_point else ("avg",)
    return [partial(reduction) for reduction in reductions if reduction not in lacks]
