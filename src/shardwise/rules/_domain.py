"""The calls that an operator is meant for: rules speak of no others, though kernels take some of them."""

from collections.abc import Sequence
from typing import Any

import torch

from ..calls import Call, facts
from ..placements import Row

# What torch calls numbers that scale tensors, and tensors of places.
_SCALES = ("alpha", "beta")
_PLACES = ("index", "indices", "offsets", "offset2bag", "bag_size", "maximum_indices")


def possible(rows: Sequence[Row], call: Call) -> list[Row]:
    """Of the rows that a rule gives for a call, those that can hold: none where the operator is not meant for it."""
    return [row for row in rows if not row.is_impossible] if rows and is_in_domain(call) else []


def is_in_domain(call: Call) -> bool:
    """False for a call that the operator is not meant for, though its kernel may take it."""
    known = facts(call.op)
    if (known.by_strides or known.stride_dependent) and not all(_is_contiguous(t) for t in call.tensors):
        return False
    if known.builtin and (_is_scaled_by_fraction(call) or _has_no_places(call)):
        return False
    return known.guard is None or known.guard(call.tensors, lambda: call.arguments)


def _is_contiguous(tensor: Any) -> bool:
    return not isinstance(tensor, torch.Tensor) or tensor.is_contiguous()


def _is_scaled_by_fraction(call: Call) -> bool:
    """True for integers times a fraction, which operators do not allow and some kernels round."""
    scales = (*_SCALES, "value") if "tensor1" in call else _SCALES
    numbers = [call.arguments.get(name) for name in scales]
    fractions = any(isinstance(number, float) and not number.is_integer() for number in numbers)
    return fractions and not any(map(_is_fraction, call.tensors))


def _has_no_places(call: Call) -> bool:
    """True where places are not integers: kernels that do not read them take any. Masks have no rows in any case."""
    named = zip(call.tensor_names, call.tensors, strict=True)
    return any(
        name in _PLACES and (_is_fraction(tensor) or tensor.dtype is torch.bool) for name, tensor in named
    )


def _is_fraction(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)
