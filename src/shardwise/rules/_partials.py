"""Which partials a dtype has: none of truth values, no average of integers, no order of complex numbers."""

from collections.abc import Sequence
from typing import Any

from ..placements import Row, is_partial, partials_of


def partials_fit(row: Row, tensors: Sequence[Any]) -> bool:
    """False where an input is partial in a way that its dtype does not have."""
    return all(
        not is_partial(placement) or partials_of(tensor.dtype, [placement.reduce_op])
        for tensor, placement in zip(tensors, row.inputs, strict=False)
    )
