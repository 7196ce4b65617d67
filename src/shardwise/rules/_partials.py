"""Which partials dtypes have, and which pass a change of dtype.

Truth values have none, integers no average, complex numbers no order. A reduction commutes with a cast where the cast
loses nothing of what it needs: an order survives where neither sign nor size is lost, a sum where no digits are.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..calls import Call
from ..placements import Row, is_partial, partials_of

_ALL, _LINEAR, _ORDER = ("sum", "avg", "max", "min"), ("sum", "avg"), ("max", "min")


def partials_fit(row: Row, tensors: Sequence[Any]) -> bool:
    """False where an input is partial in a way that its dtype does not have."""
    return all(
        not is_partial(placement) or partials_of(tensor.dtype, [placement.reduce_op])
        for tensor, placement in zip(tensors, row.inputs, strict=False)
    )


def results_fit(row: Row, call: Call) -> bool:
    """False where an output is partial in a way that its dtype does not have, or an input in one that does not pass the
    cast which the call contains. The output's dtype is the one that is given, else that of the inputs, where
    truth values may be counted."""
    given = call.arguments.get("dtype")
    before = [tensor.dtype for tensor in call.tensors]
    if isinstance(given, torch.dtype) and any(
        is_partial(placement) and placement.reduce_op not in passing(dtype, given)
        for dtype, placement in zip(before, row.inputs, strict=False)
    ):
        return False
    kinds = [given] if isinstance(given, torch.dtype) else before
    missing: set[str] = set()
    if any(dtype.is_complex for dtype in kinds) or any(isinstance(v, complex) for _, v in call.leaves()):
        missing |= {"max", "min"}
    if kinds and all(dtype == torch.bool for dtype in kinds):
        missing |= {"sum", "avg", "max", "min"} if given == torch.bool else {"avg", "max", "min"}
    if kinds and not any(dtype.is_floating_point or dtype.is_complex for dtype in kinds):
        missing |= {"avg"}
    return not any(p is not None and is_partial(p) and p.reduce_op in missing for p in row.outputs)


def passing(before: torch.dtype, after: torch.dtype) -> tuple[str, ...]:
    """The reductions that commute with a change of dtype."""
    if before == after:
        return _ALL
    if torch.bool in (before, after):
        return ()
    if after.is_complex:
        return _LINEAR if _eps(after) <= _eps(before) else ("sum",)
    if before.is_complex or before.is_floating_point:
        if not after.is_floating_point:  # what infinities and NaN become is left to the machine
            return ()
        sums = _LINEAR if _eps(after) <= _eps(before) else ()
        return sums if before.is_complex else (*sums, *_ORDER)
    if after.is_floating_point:
        return ("sum", *_ORDER)
    # Integers that do not fit wrap around: their sums do as well, unless they have more room now.
    old, new = torch.iinfo(before), torch.iinfo(after)
    return ("sum",) if new.bits < old.bits else _ORDER if new.min <= old.min and old.max <= new.max else ()


def _eps(dtype: torch.dtype) -> float:
    """How finely a dtype tells numbers apart; integers lose nothing."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0
