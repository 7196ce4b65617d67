"""Ways of splitting a tensor into pieces that reduce to it.

A row with a partial input must hold for every such splitting, so the ways differ: pieces near the value and
far from it, pieces that cancel, everything on one rank. All are exact up to rounding, and exact for integers.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Ways in turn; an experiment uses one of them for all of its partial inputs.
WAYS = ("uneven", "cancelling", "one rank", "near")


def split_partial(
    tensor: Tensor, reduction: str, ranks: int, way: str, generator: torch.Generator
) -> list[Tensor]:
    """Pieces, one per rank, whose reduction is `tensor`."""
    return _SPLITS[reduction](tensor, ranks, way, generator)


def _sum(tensor: Tensor, ranks: int, way: str, generator: torch.Generator) -> list[Tensor]:
    owner = torch.randint(ranks, tensor.shape, generator=generator)
    if way == "one rank":
        return [torch.where(owner == rank, tensor, 0).to(tensor.dtype) for rank in range(ranks)]
    spread = {"uneven": 2.0, "cancelling": 40.0, "near": 0.3}[way]
    pieces = [_noise(tensor, spread, generator) for _ in range(ranks - 1)]
    finite = _finite(tensor)
    rest = torch.where(finite, tensor, 0).to(tensor.dtype) - sum(pieces[1:], start=pieces[0])
    pieces.insert(ranks // 2, rest)
    # An infinity or NaN sits whole on one rank: inf is inf plus anything finite.
    return [torch.where(~finite & (owner == rank), tensor, piece) for rank, piece in enumerate(pieces)]


def _avg(tensor: Tensor, ranks: int, way: str, generator: torch.Generator) -> list[Tensor]:
    return [piece * ranks for piece in _sum(tensor, ranks, way, generator)]


def _max(tensor: Tensor, ranks: int, way: str, generator: torch.Generator) -> list[Tensor]:
    return _extreme(tensor, ranks, way, generator, -1)


def _min(tensor: Tensor, ranks: int, way: str, generator: torch.Generator) -> list[Tensor]:
    return _extreme(tensor, ranks, way, generator, 1)


def _extreme(tensor: Tensor, ranks: int, way: str, generator: torch.Generator, sign: int) -> list[Tensor]:
    owner = torch.randint(ranks, tensor.shape, generator=generator)
    spread = {"uneven": 3.0, "cancelling": 30.0, "one rank": 1000.0, "near": 0.4}[way]
    pieces = []
    for rank in range(ranks):
        noise = _noise(tensor, spread, generator)
        piece = torch.where(owner == rank, tensor, tensor + noise.abs() * sign)
        if tensor.is_floating_point():  # a NaN needs one rank only, whatever the others hold
            piece = torch.where(tensor.isnan() & (owner != rank), noise, piece)
        pieces.append(piece.to(tensor.dtype))
    return pieces


def _product(tensor: Tensor, ranks: int, way: str, generator: torch.Generator) -> list[Tensor]:
    if not tensor.is_floating_point():
        owner = torch.randint(ranks, tensor.shape, generator=generator)
        return [torch.where(owner == rank, tensor, 1).to(tensor.dtype) for rank in range(ranks)]
    spread = {"uneven": 1.0, "cancelling": 2.0, "one rank": 0.0, "near": 0.1}[way]
    pieces = [(_noise(tensor, spread, generator)).exp() for _ in range(ranks - 1)]
    sign = torch.randint(2, tensor.shape, generator=generator) * 2 - 1
    pieces[0] = pieces[0] * sign
    rest = tensor
    for piece in pieces:
        rest = rest / piece
    pieces.insert(ranks // 2, rest)
    return pieces


_SPLITS: dict[str, Callable[[Tensor, int, str, torch.Generator], list[Tensor]]] = {
    "sum": _sum,
    "avg": _avg,
    "max": _max,
    "min": _min,
    "product": _product,
}


def _noise(tensor: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    if tensor.is_complex() or tensor.is_floating_point():
        return torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator) * spread
    high = max(2, int(spread * 2))
    low = 0 if tensor.dtype == torch.uint8 else -high
    return torch.randint(low, high + 1, tensor.shape, dtype=tensor.dtype, generator=generator)


def _finite(tensor: Tensor) -> Tensor:
    return tensor.isfinite() if tensor.is_floating_point() else torch.ones_like(tensor, dtype=torch.bool)
