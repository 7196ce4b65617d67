"""The calls that an operator is meant for: rules speak of no others, though kernels take some of them."""

from collections.abc import Sequence
from typing import Any

import torch

from ..calls import Call, facts
from ..placements import Row


def possible(rows: Sequence[Row], call: Call) -> list[Row]:
    """Of the rows that a rule gives for a call, those that can hold: none where the operator is not meant for it."""
    return [row for row in rows if not row.is_impossible] if rows and is_in_domain(call) else []


def is_in_domain(call: Call) -> bool:
    """False for a call that the operator is not meant for, though its kernel may take it."""
    known = facts(call.op)
    if (known.by_strides or known.stride_dependent) and not all(_is_contiguous(t) for t in call.tensors):
        return False
    return not _is_fractional(call) and (
        known.guard is None or known.guard(call.tensors, lambda: call.arguments)
    )


def _is_contiguous(tensor: Any) -> bool:
    return not isinstance(tensor, torch.Tensor) or tensor.is_contiguous()


def _is_fractional(call: Call) -> bool:
    """True for integers that are scaled by a fraction, which operators do not allow and some kernels accept."""
    scales = [call.arguments.get(name) for name in ("alpha", "beta")]
    fractions = any(isinstance(scale, float) and not scale.is_integer() for scale in scales)
    return fractions and not any(t.dtype.is_floating_point or t.dtype.is_complex for t in call.tensors)
