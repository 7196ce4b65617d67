"""Ways of splitting a tensor into pieces that reduce to it.

A row with a partial input must hold for every such splitting, so the ways differ: pieces near the value and
far from it, pieces that cancel, everything on one rank. All are exact up to rounding, and exact for integers.
"""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

# Ways in turn; an experiment uses one of them for all of its partial inputs.
WAYS = ("uneven", "cancelling", "one rank", "near")

# How far the pieces of a way lie from the value, for sums, extremes and products.
_SUM_SPREAD = {"uneven": 2.0, "cancelling": 40.0, "near": 0.3}
_EXTREME_SPREAD = {"uneven": 3.0, "cancelling": 30.0, "one rank": 1000.0, "near": 0.4}
_PRODUCT_SPREAD = {"uneven": 1.0, "cancelling": 2.0, "one rank": 0.0, "near": 0.1}

# Random numbers are taken from one pool, at a position given by the seed: generating them would dominate the time.
_POOL = np.random.default_rng(20130).standard_normal(1 << 16)


class PartialPieces:
    """The partial pieces of one tensor; every reduction uses the same random numbers."""

    def __init__(self, tensor: Tensor, ranks: int, way: str, seed: int, finite: bool) -> None:
        self.dtype = tensor.dtype
        # numpy has no bfloat16; there and in float16 the pieces are rounded last.
        self.array = (
            tensor.double() if tensor.dtype.itemsize < 4 and tensor.is_floating_point() else tensor
        ).numpy()
        self.ranks = ranks
        self.way = way
        self.seed = seed
        self.finite = finite
        self.real = tensor.is_floating_point() or tensor.is_complex()

    def of(self, reduction: str) -> list[Tensor]:
        """PartialPieces, one per rank, whose reduction is the tensor."""
        if reduction == "sum":
            pieces = self._sum
        elif reduction == "avg":
            pieces = self._sum * self.ranks
        elif reduction == "product":
            pieces = self._product()
        else:
            pieces = self._extreme(-1 if reduction == "max" else 1)
        if self.dtype == torch.float64 and self.array.ndim:
            return [torch.from_numpy(piece) for piece in pieces]  # the usual case, in half the time
        return list(torch.from_numpy(pieces).to(self.dtype).unbind(0))

    @cached_property
    def noise(self) -> np.ndarray:
        """Normal numbers, or small integers, for every element and rank."""
        count = self.ranks * self.array.size
        start = self.seed * 977 % len(_POOL)
        noise = np.take(_POOL, np.arange(start, start + count), mode="wrap").reshape(
            self.ranks, *self.array.shape
        )
        return noise if self.real else np.round(3 * noise).astype(np.int64)

    @cached_property
    def owns(self) -> np.ndarray:
        """For every element, the one rank that owns it, as a mask over ranks."""
        owner = (np.abs(self.noise[0]) * 1e4).astype(np.int64) % self.ranks
        return owner == np.arange(self.ranks).reshape(-1, *([1] * self.array.ndim))

    def _spread(self, spread: float) -> np.ndarray:
        scaled = self.noise * (spread if self.real else max(1, int(spread) // 2))
        return scaled.astype(self.array.dtype, copy=False)

    @cached_property
    def _sum(self) -> np.ndarray:
        if self.way == "one rank":
            return np.where(self.owns, self.array, np.zeros((), self.array.dtype))
        pieces = self._spread(_SUM_SPREAD[self.way])
        rest = pieces[1:].sum(0, dtype=pieces.dtype)
        if self.finite:
            pieces[0] = self.array - rest
            return pieces
        # An infinity or NaN sits whole on one rank: inf is inf plus anything finite.
        strange = ~np.isfinite(self.array)
        pieces[0] = np.where(strange, 0, self.array) - rest
        return np.where(strange & self.owns, self.array, pieces)

    def _extreme(self, sign: int) -> np.ndarray:
        noise = self._spread(_EXTREME_SPREAD[self.way])
        if self.real and self.finite and (self.array == np.round(self.array)).all():
            noise = np.round(noise)  # among whole numbers a piece may meet the value of another input
        pieces = np.where(self.owns, self.array, self.array + sign * np.abs(noise))
        if self.finite:
            return pieces
        # A NaN needs one rank only, whatever the others hold.
        return np.where(np.isnan(self.array) & ~self.owns, noise, pieces)

    def _product(self) -> np.ndarray:
        if not self.real or self.way == "one rank":
            return np.where(self.owns, self.array, np.ones((), self.array.dtype))
        pieces = np.exp(self._spread(_PRODUCT_SPREAD[self.way]))
        pieces[1:] *= np.where(self.owns[1:], -1.0, 1.0)
        pieces[0] = self.array / pieces[1:].prod(0)
        return pieces
