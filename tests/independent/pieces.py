"""What each rank holds of a tensor, and the tensor that the ranks' pieces are: chunk and cat, sums and extremes.

Random values are multiples of 2**-12 and not large, so that sums of pieces, and products of two of them, are exact in
float64: what then differs is not rounding.
"""

from functools import cache
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

GRID = 2.0**12
REDUCTIONS = ("sum", "avg", "max", "min", "product")


class Placement(NamedTuple):
    """`R`, `S(dim)` or `P(reduction)`."""

    kind: str
    dim: int = -1
    reduction: str = ""


class Claim(NamedTuple):
    """A row, read from its text; None for an output of which it says nothing."""

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement | None, ...]
    shards: str
    local: str | None


@cache
def placement(text: str) -> Placement | None:
    text = text.strip()
    if text == "-":
        return None
    if text == "R":
        return Placement("R")
    kind, inside = text[0], text[2:-1]
    if kind == "S" and inside.isdigit():
        return Placement("S", dim=int(inside))
    if kind == "P" and inside in REDUCTIONS:
        return Placement("P", reduction=inside)
    raise ValueError(f"{text!r} is not a placement")


@cache
def claim(text: str) -> Claim:
    """Read `S(0), R -> P(sum) for even shards with local lookup`."""
    rest, _, local = text.partition(" with local ")
    rest, _, shards = rest.partition(" for ")
    left, _, right = rest.partition("->")
    inputs, outputs = (
        tuple(placement(part) for part in side.split(",") if part.strip()) for side in (left, right)
    )
    if None in inputs:
        raise ValueError(f"{text!r} does not place every input")
    return Claim(inputs, outputs, shards.removesuffix(" shards") or "any", local or None)  # type: ignore[arg-type]


def chunk_sizes(size: int, ranks: int) -> list[int]:
    """The sizes of a dim's chunks; the last ones may be empty."""
    each = -(-size // ranks)
    return [max(0, min(each, size - rank * each)) for rank in range(ranks)]


def cut(tensor: Tensor, dim: int, ranks: int) -> list[Tensor]:
    """One chunk per rank, each in memory of its own, with its dims nested as the tensor's."""
    return [part.clone() for part in tensor.split_with_sizes(chunk_sizes(tensor.shape[dim], ranks), dim)]


def reduced(pieces: list[Tensor], reduction: str) -> Tensor:
    stacked = torch.stack(pieces)
    if reduction == "sum":
        return stacked.sum(0, dtype=stacked.dtype)
    if reduction == "avg":
        return stacked.mean(0)
    if reduction == "max":
        return stacked.amax(0)
    if reduction == "min":
        return stacked.amin(0)
    return stacked.prod(0, dtype=stacked.dtype)


def has_reduction(dtype: torch.dtype, reduction: str) -> bool:
    """No partials of bool and of floats of 8 bits, no average of integers, no order of complex numbers."""
    if dtype.itemsize == 1 and (dtype == torch.bool or dtype.is_floating_point):
        return False
    if dtype.is_complex:
        return reduction not in ("max", "min")
    return dtype.is_floating_point or reduction != "avg"


def partial_pieces(tensor: Tensor, reduction: str, ranks: int, random: Random) -> list[Tensor]:
    """Pieces, one per rank, that reduce to the tensor: far from it, near it, or all of it on one rank."""
    if reduction in ("sum", "avg"):
        pieces = _summands(tensor, ranks, random)
        return [piece * ranks for piece in pieces] if reduction == "avg" else pieces
    owner = draw_integers(0, ranks, tensor.shape, random)
    if reduction == "product":
        one = torch.ones((), dtype=tensor.dtype)
        return [torch.where(owner == rank, tensor, one) for rank in range(ranks)]
    sign = -1 if reduction == "max" else 1
    spread = random.choice((2, 40)) if random.random() < 0.7 else 1000
    pieces = []
    for rank in range(ranks):
        away = _noise(tensor, spread, random).abs()
        away = torch.where(draw_integers(0, 4, tensor.shape, random) == 0, torch.zeros_like(away), away)
        moved = tensor + sign * away
        overflows = moved > tensor if sign < 0 else moved < tensor
        pieces.append(torch.where((owner == rank) | overflows, tensor, moved))
    return pieces


def _summands(tensor: Tensor, ranks: int, random: Random) -> list[Tensor]:
    way = random.choice(("far", "far", "near", "one rank"))
    if way == "one rank":
        owner, zero = draw_integers(0, ranks, tensor.shape, random), torch.zeros_like(tensor)
        return [torch.where(owner == rank, tensor, zero) for rank in range(ranks)]
    pieces = [_noise(tensor, 32 if way == "far" else 1, random) for _ in range(ranks - 1)]
    rest = tensor
    for piece in pieces:
        rest = rest - piece
    pieces.insert(random.randrange(ranks), rest)
    return pieces


def _noise(tensor: Tensor, spread: float, random: Random) -> Tensor:
    """Numbers between -spread and spread, like the tensor in dtype, shape and order of its dims in memory."""
    dtype = tensor.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        limit = min(int(spread) + 1, 9)  # powers of them must not overflow
        noise = draw_integers(-limit, limit + 1, tensor.shape, random)
    elif dtype.is_complex:
        real, imaginary = (draw_grid(spread, tensor.shape, random) for _ in range(2))
        noise = torch.complex(real, imaginary)
    else:
        noise = draw_grid(spread, tensor.shape, random)
    return torch.empty_like(tensor).copy_(noise)


def draw_grid(spread: float, shape: tuple[int, ...] | torch.Size, random: Random) -> Tensor:
    """Multiples of 2**-12 between -spread and spread."""
    limit = int(spread * GRID)
    return draw_integers(-limit, limit + 1, shape, random).double() / GRID


def draw_integers(low: int, high: int, shape: tuple[int, ...] | torch.Size, random: Random) -> Tensor:
    return torch.randint(low, high, tuple(shape), generator=_generator(random))


_GENERATOR = torch.Generator()


def _generator(random: Random) -> torch.Generator:
    """torch's numbers follow from Python's, so that one seed gives all."""
    return _GENERATOR.manual_seed(random.getrandbits(62))


def on_grid(tensor: Tensor) -> Tensor:
    """The tensor with its floats rounded to the grid; what is not zero stays so, what is large or no number stays."""
    if tensor.is_complex():
        return torch.complex(on_grid(tensor.real), on_grid(tensor.imag)).to(tensor.dtype)
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 4:
        return tensor
    rounded = (tensor * GRID).round() / GRID
    rounded = torch.where((rounded == 0) & (tensor != 0), tensor.sign() / GRID, rounded)
    return torch.where(tensor.abs() < 2.0**20, rounded, tensor)
