"""Which partials dtypes have, and which pass a change of dtype.

Truth values have none, integers no average, complex numbers no order. A reduction commutes with a cast where the cast
loses nothing of what it needs: an order survives where neither sign nor size is lost, a sum where no digits are.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Placement

from ..calls import Call, facts
from ..errors import UsageError
from ..placements import Row, is_partial, partial, partials_of

_ALL, _LINEAR, _ORDER = ("sum", "avg", "max", "min"), ("sum", "avg"), ("max", "min")


def partials_fit(placements: Sequence[Placement | None], tensors: Sequence[Any]) -> bool:
    """False where a tensor is partial in a way that its dtype does not have."""
    return all(
        tensor is None
        or placement is None
        or not is_partial(placement)
        or bool(partials_of(tensor.dtype, [placement.reduce_op]))
        for tensor, placement in zip(tensors, placements, strict=False)
    )


def results_fit(row: Row, call: Call) -> bool:
    """False where an output is partial in a way that its dtype does not have, or an input in one that does not pass the
    cast to it which the call contains."""
    outputs = [(i, p.reduce_op) for i, p in enumerate(row.outputs) if p is not None and is_partial(p)]
    if not outputs or _is_of_one_dtype(call):
        return True
    try:
        dtypes = call.output_dtypes
    except UsageError:
        return False  # of a call that does not run on meta tensors nothing is known
    known = [(dtype, r) for i, r in outputs if i < len(dtypes) and (dtype := dtypes[i]) is not None]
    if any(not partials_of(dtype, [reduction]) for dtype, reduction in known):
        return False
    if any(not _divides(dtype) and r in _LINEAR for dtype, r in known) and _takes_means(call):
        return False
    inputs = [(t.dtype, p) for t, p in zip(call.tensors, row.inputs, strict=False) if is_partial(p)]
    return all(p.reduce_op in passing(before, after) for before, p in inputs for after, _ in known[:1])


def _is_of_one_dtype(call: Call) -> bool:
    """True if all that the dtypes of its outputs depend on is of one real floating dtype."""
    dtypes = {t.dtype for t in call.tensors}
    given = any(isinstance(leaf, complex | torch.dtype) for _, leaf in call.leaves())
    return not given and len(dtypes) == 1 and all(dtype.is_floating_point for dtype in dtypes)


def _divides(dtype: torch.dtype) -> bool:
    """True if a quotient of two of its numbers is one of them, up to rounding."""
    return dtype.is_floating_point or dtype.is_complex


def _takes_means(call: Call) -> bool:
    return any(leaf == "mean" for _, leaf in call.leaves() if isinstance(leaf, str))


def keeps_order(row: Row, call: Call, rows: Collection[Row]) -> bool:
    """False where an order of integers is said to pass arithmetic: they wrap around. What moves values alone keeps
    sums as well, which shows among all rows of the call, as scaling does."""
    orders = {
        p.reduce_op
        for t, p in zip(call.tensors, row.inputs, strict=False)
        if is_partial(p) and p.reduce_op in _ORDER and not _divides(t.dtype)
    }
    if not orders:
        return True
    turned = {p.reduce_op for p in row.outputs if p is not None and is_partial(p)} - orders
    return _with_sums(row) in rows and not ((turned or _scales(call)) and _has_integer_results(call))


def _scales(call: Call) -> bool:
    """True if every element is computed from one of the input and a number: twice a large integer is negative."""
    numbers = any(isinstance(leaf, int | float) for _, leaf in call.leaves())
    return facts(call.op).elementwise and numbers


def _has_integer_results(call: Call) -> bool:
    return any(dtype is not None and not _divides(dtype) for dtype in call.output_dtypes)


def _with_sums(row: Row) -> Row:
    def summed(placement: Any) -> Any:
        return partial("sum") if placement is not None and is_partial(placement) else placement

    return Row(tuple(map(summed, row.inputs)), tuple(map(summed, row.outputs)), row.shards, row.local)


def passing(before: torch.dtype, after: torch.dtype) -> tuple[str, ...]:
    """The reductions that commute with a change of dtype."""
    if before == after:
        return _ALL
    if torch.bool in (before, after):
        return ()
    if not _divides(before):
        return _passing_integers(before, after)
    if after.is_complex:
        return _LINEAR if _eps(after) <= _eps(before) else ("sum",)
    if not after.is_floating_point:  # what infinities and NaN become is left to the machine
        return ()
    sums = _LINEAR if _eps(after) <= _eps(before) else ()
    return sums if before.is_complex else (*sums, *_ORDER)


def _passing_integers(before: torch.dtype, after: torch.dtype) -> tuple[str, ...]:
    """Integers that do not fit wrap around: their sums do as well, unless they have more room now."""
    if after.is_complex:
        return ()
    if after.is_floating_point:
        return _ORDER
    old, new = torch.iinfo(before), torch.iinfo(after)
    return ("sum",) if new.bits < old.bits else _ORDER if new.min <= old.min and old.max <= new.max else ()


def _eps(dtype: torch.dtype) -> float:
    """How finely a dtype tells numbers apart."""
    return torch.finfo(dtype).eps
