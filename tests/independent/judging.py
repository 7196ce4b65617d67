"""Do the ranks' local outputs, placed as a row claims, make the output of the whole call?

Shapes, dtypes, integers and bools must be equal. Floats may differ by rounding: first a tolerance from the dtype and
from the largest value that was added up; what exceeds it is compared with what a rounding error in the inputs does to
the result of the whole call, element by element.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .pieces import Placement, chunk_sizes, has_reduction, reduced


class Difference(NamedTuple):
    """`error` and `expected` are None where shapes or dtypes differ rather than values."""

    text: str
    error: Tensor | None = None
    expected: Tensor | None = None


class Tolerance(NamedTuple):
    """The rounding error of a number, the size of the largest input, whether infinities are to agree (sums of pieces
    may lack them), and whether only elements count that are finite on both sides."""

    unit: float
    scale: float
    infinities: bool = True
    only_finite: bool = False


def difference(
    expected: Tensor, pieces: Sequence[Tensor], placed: Placement, tolerance: Tolerance | None
) -> Difference | None:
    """Why these local outputs are not this output; None if they are. Without tolerance only shape and dtype count."""
    for rank, piece in enumerate(pieces):
        if not isinstance(piece, Tensor) or piece.dtype != expected.dtype:
            kind = piece.dtype if isinstance(piece, Tensor) else type(piece).__name__
            return Difference(f"rank {rank} has {kind}, the whole {expected.dtype}")
    wanted = _local_shapes(expected, placed, len(pieces))
    if isinstance(wanted, str):
        return Difference(wanted)
    for rank, (piece, shape) in enumerate(zip(pieces, wanted, strict=True)):
        if list(piece.shape) != shape:
            return Difference(f"rank {rank} has shape {list(piece.shape)}, not {shape}")
    if tolerance is None:
        return None
    if placed.kind == "R":
        for rank, piece in enumerate(pieces):
            if (found := _unequal(expected, piece, pieces, tolerance)) is not None:
                return found._replace(text=f"on rank {rank} {found.text}")
        return None
    whole = (
        torch.cat(list(pieces), placed.dim) if placed.kind == "S" else reduced(list(pieces), placed.reduction)
    )
    return _unequal(expected, whole, pieces, tolerance)


def _local_shapes(expected: Tensor, placed: Placement, ranks: int) -> list[list[int]] | str:
    """The shape of every rank's piece, or why there is none."""
    shape = list(expected.shape)
    if placed.kind == "P" and not has_reduction(expected.dtype, placed.reduction):
        return f"P({placed.reduction}) is claimed of {expected.dtype}"
    if placed.kind != "S":
        return [shape] * ranks
    dim = placed.dim
    if dim >= len(shape):
        return f"S({dim}) is claimed of a tensor with {len(shape)} dims"
    return [[*shape[:dim], size, *shape[dim + 1 :]] for size in chunk_sizes(shape[dim], ranks)]


def _unequal(
    expected: Tensor, found: Tensor, pieces: Sequence[Tensor], tolerance: Tolerance
) -> Difference | None:
    expected, found, pieces = widened(expected), widened(found), [widened(p) for p in pieces]
    if torch.equal(expected, found):
        return None
    if not is_real(expected):
        wrong = expected != found
        return Difference(_first(expected, found, wrong))
    ignored = expected.isnan() if tolerance.infinities else ~expected.isfinite()
    if tolerance.only_finite:
        ignored = ~(expected.isfinite() & found.isfinite())
    error = (found - expected).abs().double()
    error = torch.where((expected == found) | ignored, 0.0, error).nan_to_num(torch.inf, torch.inf)
    scale = max(tolerance.scale, largest(expected), *(largest(piece) for piece in pieces))
    sizes = expected.abs().double().nan_to_num(0, 0, 0)
    wrong = error > 2e3 * tolerance.unit * (sizes + scale)
    if not bool(wrong.any()):
        return None
    return Difference(_first(expected, found, wrong), error, expected)


def is_real(tensor: Tensor) -> bool:
    """True for floats and complex numbers, which are rounded."""
    return tensor.is_floating_point() or tensor.is_complex()


def widened(tensor: Tensor) -> Tensor:
    """Floats of 8 bits as wider ones: torch neither compares nor adds them."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def largest(tensor: Tensor) -> float:
    size = widened(tensor).abs() if tensor.dtype != torch.bool else tensor
    size = size[size.isfinite()] if size.is_floating_point() else size
    return float(size.max()) if size.numel() else 0.0


def _first(expected: Tensor, found: Tensor, wrong: Tensor) -> str:
    place = tuple(int(i) for i in wrong.nonzero()[0])
    count = f"{int(wrong.sum())} of {wrong.numel()} elements differ"
    return f"element {list(place)} is {found[place].item()!r}, not {expected[place].item()!r} ({count})"


def is_rounding(
    found: Difference,
    run: Callable[[Sequence[Tensor]], Tensor],
    tensors: Sequence[Tensor],
    scales: Sequence[float],
) -> str | None:
    """Figures that explain a difference as rounding; None if it is none.

    Every input is changed by its rounding error, that of values as large as its entry in `scales`, ten times. Where
    the result of the whole call changes as much (a thousandth of the difference or more) in every element that
    differs, the difference is what rounding makes of the call."""
    if found.error is None or found.expected is None or not bool(found.error.isfinite().all()):
        return None
    generator = torch.Generator().manual_seed(0)
    sensitivity = torch.zeros_like(found.error)
    for _ in range(10):
        changed = [_shaken(t, s, generator) for t, s in zip(tensors, scales, strict=True)]
        try:
            result = run(changed)
        except RuntimeError:
            continue
        if result.shape == found.expected.shape:
            moved = (result - found.expected).abs().double().nan_to_num(0, 0, 0)
            sensitivity = torch.maximum(sensitivity, moved)
    unit = torch.finfo(found.expected.dtype).eps
    allowed = 1e3 * sensitivity + 2e3 * unit * found.expected.abs().double().nan_to_num(0, 0, 0)
    if bool((found.error > allowed).any()):
        return None
    return f"differs by {found.error.max():.2g}; rounding the inputs changes the whole by {sensitivity.max():.2g}"


def _shaken(tensor: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    if not is_real(tensor):
        return tensor.clone()
    unit = torch.finfo(tensor.dtype).eps
    sign = torch.randint(0, 2, tuple(tensor.shape), generator=generator) * 2 - 1
    return (tensor + sign * unit * torch.maximum(tensor.abs(), torch.tensor(scale))).to(tensor.dtype)
