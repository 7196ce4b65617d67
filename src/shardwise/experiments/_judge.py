"""Which placements the ranks' local outputs agree with, given the output of the whole call.

One set of local outputs is compared with every placement: replicated, a shard of each dim, each partial. Integers
and bools must be equal; floats agree within a tolerance that follows the dtype. NaN equals NaN in the same place.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement

from ..placements import is_partial, is_replicate, join, piece_sizes

# Relative tolerance, and absolute tolerance as a fraction of the largest value, by width of the float.
_TOLERANCES = {
    torch.float64: (1e-7, 1e-9),
    torch.complex128: (1e-7, 1e-9),
    torch.float32: (2e-4, 1e-5),
    torch.complex64: (2e-4, 1e-5),
    torch.float16: (2e-2, 5e-3),
    torch.bfloat16: (5e-2, 2e-2),
}


# Which differences of a sum of local outputs are excused; see `Experiment.excused`.
Excuse = Literal["nothing", "cancelled", "infinite", "less_nan"]


def array(tensor: Tensor) -> np.ndarray:
    if tensor.itemsize < 4 and tensor.is_floating_point():
        tensor = tensor.double()  # numpy has none of these floats but one
    try:
        return tensor.numpy()
    except RuntimeError:  # lazy conjugates and negations, and tensors that require grad
        return tensor.detach().resolve_conj().resolve_neg().numpy()


class Expected:
    """One output of the whole call, ready to be compared with many local ones."""

    def __init__(self, tensor: Tensor, finite_inputs: bool, inputs: Sequence[Tensor] = ()) -> None:
        """`inputs` are those of the call: a result is no more exact than they are."""
        self.dtype = tensor.dtype
        self.array = array(tensor)
        self.shape = self.array.shape
        self.exact = not (tensor.is_floating_point() or tensor.is_complex())
        self.mask: np.ndarray | None = None
        self.special = not finite_inputs
        self.has_values = True  # uninitialised memory has a shape only
        if not self.exact:
            size = np.abs(self.array)
            finite = np.isfinite(size)
            if not _every(finite):
                size = np.where(finite, size, 0)
                if finite_inputs:
                    self.mask = finite  # from finite inputs, 1 / 0 is where exact arithmetic has no answer
            dtypes = {self.dtype, *(t.dtype for t in inputs if t.is_floating_point() or t.is_complex())}
            self.relative, fraction = max(_TOLERANCES.get(dtype, (5e-2, 2e-2)) for dtype in dtypes)
            self.fraction = fraction
            self.tolerance = self.relative * size + fraction * size.max(initial=0)
        self.degenerate = _is_degenerate(self.array if self.mask is None else self.array[self.mask])

    def tighten(self, relative: float) -> None:
        """Allow this relative error and no more."""
        self.relative, self.fraction = relative, 0.0
        self.tolerance = self.relative * np.abs(self.array)

    def equals(self, other: np.ndarray, magnitude: float = 0.0) -> bool:
        """True if `other` is this output, up to rounding of values as large as `magnitude`."""
        if not self.has_values:
            return self.shape == other.shape
        if self.exact:
            return np.array_equal(self.array, other)
        if self.special:
            allowed = self.fraction * max(
                1.0, min(magnitude, 1e6)
            )  # the largest float is a value here, not a scale
            return bool(np.isclose(other, self.array, self.relative, allowed, equal_nan=True).all())
        tolerance = self.tolerance if not magnitude else self.tolerance + self.fraction * magnitude
        close = np.abs(other - self.array) <= tolerance
        return _every(close if self.mask is None else close[self.mask])

    def agrees(self, pieces: Sequence[np.ndarray], placement: Placement, excuse: Excuse = "nothing") -> bool:
        """True if these local outputs, placed so, are this output. A sum may be excused where infinities of the pieces
        cancel, so that it is NaN, or where it or this output is infinite or NaN; any output where this one is NaN."""

        def excused(piece: np.ndarray) -> np.ndarray:
            if excuse == "infinite":
                return np.where(np.isfinite(piece) & np.isfinite(self.array), piece, self.array)
            return np.where(np.isnan(self.array), self.array, piece) if excuse == "less_nan" else piece

        if is_replicate(placement):
            return all(piece.shape == self.shape and self.equals(excused(piece)) for piece in pieces)
        if is_partial(placement):
            if any(piece.shape != self.shape for piece in pieces):
                return False
            whole = _REDUCE[placement.reduce_op](pieces)
            if excuse == "cancelled":
                whole = np.where(np.isnan(whole), self.array, whole)
            elif excuse == "infinite":
                whole = excused(whole)
            elif excuse == "less_nan":
                whole = np.where(np.isnan(whole) | np.isnan(self.array), self.array, whole)
            if self.equals(whole):
                return True
            # Large pieces that cancel leave rounding errors of their own size.
            return not self.exact and self.equals(whole, _magnitude(pieces))
        if not self._cut_into([piece.shape for piece in pieces], placement):
            return False
        if hasattr(placement, "split_factor"):
            joined = join([torch.from_numpy(np.ascontiguousarray(p)) for p in pieces], placement)
            return self.equals(array(joined))
        return self.equals(excused(np.concatenate(pieces, placement.dim)))

    def first_difference(self, pieces: Sequence[np.ndarray], placement: Placement) -> tuple[Any, ...]:
        """Where the local outputs, replicated or reduced as `placement` says, differ most from this output."""
        wholes = list(pieces) if is_replicate(placement) else [_REDUCE[placement.reduce_op](pieces)]
        wrong = next((w for w in wholes if not self.equals(w)), wholes[0])
        apart = np.abs(np.asarray(wrong, dtype=complex) - np.asarray(self.array, dtype=complex))
        apart = np.where(np.isfinite(apart), apart, np.inf)
        return np.unravel_index(int(apart.argmax()), apart.shape)

    def _cut_into(self, shapes: Sequence[tuple[int, ...]], placement: Placement) -> bool:
        """True if shapes are those of this output's shards."""
        shape, dim = self.shape, placement.dim
        if dim >= len(shape):
            return False
        sizes = piece_sizes(shape[dim], placement, len(shapes))
        before, after = shape[:dim], shape[dim + 1 :]
        for local, size in zip(shapes, sizes, strict=True):
            if (
                len(local) != len(shape)
                or local[dim] != size
                or local[:dim] != before
                or local[dim + 1 :] != after
            ):
                return False
        return True


def _is_degenerate(values: np.ndarray) -> bool:
    """True for values that agree with too much to be evidence: none, all equal, a single zero or NaN."""
    if values.size == 0:
        return True
    first = values.flat[0]
    if values.size == 1:
        return bool(first == 0 or first != first)
    return _every(values == first) or _every(values != values)


def _every(mask: np.ndarray) -> bool:
    """`mask.all()`, which takes four times as long."""
    return np.count_nonzero(mask) == mask.size


def _magnitude(pieces: Sequence[np.ndarray]) -> float:
    return float(max((np.abs(p[np.isfinite(p)]).max(initial=0) for p in pieces), default=0.0))


def _sum(pieces: Sequence[np.ndarray]) -> np.ndarray:
    total = pieces[0]
    for piece in pieces[1:]:
        total = total + piece  # for bool this is "or", which is what an all-reduce of bools gives
    return total


def _avg(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return _sum(pieces) / len(pieces)


def _fold(combine: Any) -> Any:
    def reduce(pieces: Sequence[np.ndarray]) -> np.ndarray:
        whole = pieces[0]
        for piece in pieces[1:]:
            whole = combine(whole, piece)
        return whole

    return reduce


_REDUCE = {
    "sum": _sum,
    "avg": _avg,
    "max": _fold(np.maximum),
    "min": _fold(np.minimum),
    "product": _fold(np.multiply),
}
