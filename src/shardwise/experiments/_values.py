"""Adversarial inputs: named generators of values that try to refute a row.

A generator is a function `(shape, dtype, device, input_idx) -> Tensor` with a docstring that says what it is for.
Those here are used for every operator; `@adversarial("aten.linalg_cross")` adds one for an operator whose name matches,
and it is used beside the others. Values are small enough that products and exponentials stay finite.
"""

import fnmatch
import functools
import inspect
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from ..errors import require

Make = Callable[..., Tensor]


@dataclass(frozen=True)
class Generator:
    name: str
    make: Make
    doc: str
    pattern: str = "*"
    only: bool = False


_GENERATORS: list[Generator] = []


def adversarial(pattern: str = "*", only: bool = False) -> Callable[[Make], Make]:
    """Register a generator for the operators whose name matches `pattern` (with `*`; overloads may be left out).

    `only` says that the operator's inputs must look like this (a sorted sequence, say), so that the general
    generators are not used for it.

    >>> @adversarial("aten.linalg_cross")
    ... def parallel(shape, dtype, device, input_idx=0):
    ...     \"\"\"Parallel vectors, whose cross product is zero.\"\"\"
    ...     return torch.ones(shape, dtype=dtype, device=device) * (1 + input_idx)
    """

    require(pattern, str, "pattern", "a name with *, as in @adversarial('aten.linalg_*')")

    def register(make: Make) -> Make:
        name = make.__name__.strip("_").replace("_", " ")
        _GENERATORS[:] = [g for g in _GENERATORS if (g.name, g.pattern) != (name, pattern)]
        _GENERATORS.append(Generator(name, make, (make.__doc__ or "").strip().split("\n")[0], pattern, only))
        return make

    return register


def add_generators(module: ModuleType, pattern: str) -> list[str]:
    """Register the generators of a module for operators whose name matches, but for those that it registers itself: all
    functions of it that begin with `shape`, `dtype` and `device`. Returns the names of all that it has."""
    made = [
        function
        for function in vars(module).values()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and list(inspect.signature(function).parameters)[:3] == ["shape", "dtype", "device"]
    ]
    known = [generator.make for generator in _GENERATORS]
    for function in made:
        if function not in known:
            adversarial(pattern)(function)
    return [function.__name__ for function in made]


@contextmanager
def own_generators() -> Iterator[None]:
    """Generators that are registered inside are forgotten afterwards."""
    before = list(_GENERATORS)
    try:
        yield
    finally:
        _GENERATORS[:] = before


def generators(names: tuple[str, ...]) -> list[Generator]:
    """Generators for an operator known by any of these names."""
    fitting = [g for g in _GENERATORS if any(_matches(g.pattern, name) for name in names)]
    return [g for g in fitting if g.only] or fitting


@functools.lru_cache(maxsize=4096)
def drawn(make: Make, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, index: int) -> Tensor:
    """The values of a generator for input number `index`, drawn once: they are not to be written to."""
    return make(torch.Size(shape), dtype, device, index)


def _matches(pattern: str, name: str) -> bool:
    return fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, pattern + ".*")


def _random(name: str, shape: tuple[int, ...], input_idx: int) -> torch.Generator:
    seed = zlib.crc32(f"{name} {shape} {input_idx}".encode())
    return torch.Generator().manual_seed(seed)


def _is_real(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _integers(
    shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator, low: int, high: int
) -> Tensor:
    """Integers below `high`; for bool, true and false equally often."""
    if dtype == torch.bool:
        return torch.rand(shape, generator=random) < 0.5
    return torch.randint(low, high, shape, generator=random).to(dtype)


# Integer values are drawn around zero; where they are indices, the experiment folds them into range.
LOW, HIGH = -4, 9


@adversarial()
def normal(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Normal values of both signs."""
    random = _random("normal", shape, input_idx)
    if _is_real(dtype):
        return torch.randn(shape, dtype=dtype, generator=random)
    return _integers(shape, dtype, random, LOW, HIGH)


@adversarial()
def wide(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Magnitudes from 0.01 to 100, both signs."""
    random = _random("wide", shape, input_idx)
    if _is_real(dtype):
        scale = 10.0 ** torch.randint(-2, 3, shape, generator=random)
        return torch.randn(shape, dtype=dtype, generator=random) * scale
    return _integers(shape, dtype, random, 5 * LOW, 5 * HIGH)


@adversarial()
def sparse(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Zeros but for one element, which only one shard holds."""
    random = _random("sparse", shape, input_idx)
    values = torch.zeros(shape, dtype=dtype)
    if values.numel():
        place = torch.randint(values.numel(), (), generator=random)
        values.view(-1)[place] = 1 if dtype == torch.bool else 3
    return values


@adversarial()
def positive(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Values from 1.1 to 3, for operators that take no others."""
    random = _random("positive", shape, input_idx)
    if _is_real(dtype):
        return torch.rand(shape, dtype=dtype, generator=random) * 1.9 + 1.1
    return _integers(shape, dtype, random, 1, HIGH)


@adversarial()
def unit(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Values strictly between 0 and 1."""
    random = _random("unit", shape, input_idx)
    if _is_real(dtype):
        return torch.rand(shape, dtype=dtype, generator=random) * 0.9 + 0.05
    return _integers(shape, dtype, random, 0, 2)


@adversarial()
def negative(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Values from -3 to -0.1."""
    random = _random("negative", shape, input_idx)
    if _is_real(dtype):
        return torch.rand(shape, dtype=dtype, generator=random) * -2.9 - 0.1
    if dtype == torch.uint8:
        return _integers(shape, dtype, random, 1, HIGH)
    return _integers(shape, dtype, random, -HIGH, 0)


@adversarial()
def ties(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Few distinct values, zeros and ones among them."""
    random = _random("ties", shape, input_idx)
    low = -2 if dtype.is_signed and dtype != torch.bool else 0
    return _integers(shape, dtype, random, low, 3)


@adversarial()
def ascending(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Distinct values in order."""
    count = int(torch.Size(shape).numel())
    values = torch.arange(count).reshape(shape)
    if _is_real(dtype):
        return values.to(dtype) * (4.0 / max(count, 1)) - 1.9 + 0.05 * input_idx
    return values % 2 == 0 if dtype == torch.bool else (values % 97).to(dtype)


@adversarial()
def descending(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Distinct values in reverse order."""
    values = ascending(shape, dtype, device, input_idx)
    return values.reshape(-1).flip(0).reshape(shape)


@adversarial()
def dense(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Ones but for one zero, which only one shard holds."""
    random = _random("dense", shape, input_idx)
    values = torch.ones(shape, dtype=dtype)
    if values.numel():
        values.view(-1)[torch.randint(values.numel(), (), generator=random)] = 0
    return values


@adversarial()
def zeros(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """All zero: no evidence for a row, but the pieces of a partial zero are not zero."""
    return torch.zeros(shape, dtype=dtype)


@adversarial()
def special(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Infinities and NaN among normal values; used in one input at a time."""
    random = _random("special", shape, input_idx)
    if not dtype.is_floating_point:
        return normal(shape, dtype, device, input_idx)
    values = torch.randn(shape, dtype=dtype, generator=random)
    if values.numel() >= 3:
        places = torch.randperm(values.numel(), generator=random)[:3]
        values.view(-1)[places] = torch.tensor([float("inf"), float("-inf"), float("nan")], dtype=dtype)
    return values


@adversarial("aten.nansum*")
def missing(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """NaN alone among normal values, for operators that leave it out: beside infinities it is not seen."""
    values = normal(shape, dtype, device, input_idx)
    if _is_real(dtype):
        values.view(-1)[::3] = float("nan")
    return values


def _sorted_rows(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, input_idx: int, step: float
) -> Tensor:
    random = _random(name, shape, input_idx)
    gaps = torch.rand(shape, generator=random).mul(2 * step)
    gaps = gaps.floor() if step == int(step) else gaps
    return (gaps.cumsum(-1) - step * shape[-1] / 2 if shape else gaps).to(dtype)


def _register_sorted(pattern: str, sequence: int) -> None:
    """Operators whose input number `sequence` must be in ascending order along its last dim."""

    @adversarial(pattern, only=True)
    def sorted_sequence(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
        """A sorted sequence with random gaps, and values around it."""
        if input_idx == sequence:
            # From about -4 to 4 however long it is, so that a given number falls inside.
            return _sorted_rows(
                "sorted", shape, dtype, input_idx, 8 / max((1, *shape[-1:])) if _is_real(dtype) else 2
            )
        return normal(shape, dtype, device, input_idx)

    @adversarial(pattern, only=True)
    def sorted_with_ties(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
        """A sorted sequence with equal neighbours, and values that meet them."""
        if input_idx == sequence:
            return _sorted_rows("sorted ties", shape, dtype, input_idx, 1)
        return ties(shape, dtype, device, input_idx)

    @adversarial(pattern, only=True)
    def sorted_and_far_values(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
        """A sorted sequence, and values mostly beyond its ends."""
        if input_idx == sequence:
            return _sorted_rows("sorted far", shape, dtype, input_idx, 0.4 if _is_real(dtype) else 1)
        return wide(shape, dtype, device, input_idx)

    @adversarial(pattern, only=True)
    def sorted_below_values(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
        """A sorted sequence, most of it below the values: the search goes far."""
        if input_idx == sequence:
            return _sorted_rows("sorted low", shape, dtype, input_idx, 1) - (4 if dtype.is_signed else 0)
        return positive(shape, dtype, device, input_idx)


def _register_distinct(pattern: str) -> None:
    """Operators that take the root of a difference of squares: where inputs are equal, nothing but rounding is left."""

    def apart(make: Make, first: int, doc: str) -> None:
        def shifted(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
            return make(shape, dtype, device, input_idx) + 5 * abs(input_idx - first)

        shifted.__name__, shifted.__doc__ = f"{make.__name__}_apart", doc
        adversarial(pattern, only=True)(shifted)

    apart(normal, 0, "Normal values, the second input above the first.")
    apart(ties, 1, "Few distinct values, the first input above the second.")
    apart(positive, 1, "Values from 1.1 to 3, the first input above the second.")
    apart(
        sparse, 0, "Equal but for one element, which only one shard holds; the second input above the first."
    )


_register_distinct("aten._euclidean_dist*")
_register_sorted("aten.searchsorted*", 0)
_register_sorted("aten.bucketize*", 1)


def _register_without_ties(pattern: str) -> None:
    """Operators that may return any of several equal elements."""

    @adversarial(pattern, only=True)
    def shuffled(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
        """Distinct values in any order."""
        values = ascending(shape, dtype, device, input_idx).reshape(-1)
        order = torch.randperm(values.numel(), generator=_random("shuffled", shape, input_idx))
        return values[order].reshape(shape)

    @adversarial(pattern, only=True)
    def special(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
        """Infinities and NaN among distinct values; used in one input at a time."""
        values = shuffled(shape, dtype, device, input_idx)
        if dtype.is_floating_point and values.numel() >= 3:
            values.view(-1)[:3] = torch.tensor([float("inf"), float("-inf"), float("nan")], dtype=dtype)
        return values

    for make in (ascending, descending):
        adversarial(pattern, only=True)(make)


_register_without_ties("aten.topk*")


# Vectors of three elements: what sets cross products apart is how the operands lie to each other.


def _along_three(shape: tuple[int, ...]) -> int | None:
    """The last dim of three elements, along which a cross product may be taken."""
    return max((dim for dim, size in enumerate(shape) if size == 3), default=None)


@adversarial("aten.linalg_cross*")
@adversarial("aten.cross*")
def orthogonal(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Vectors along one axis each, another for every input: their cross product is as large as it can be."""
    values = torch.zeros(shape, dtype=dtype)
    if (dim := _along_three(shape)) is None:
        return normal(shape, dtype, device, input_idx)
    along = values.select(dim, input_idx % 3)
    along.copy_((torch.arange(along.numel()) % 7 + 1).reshape(along.shape))
    return values


@adversarial("aten.linalg_cross*")
@adversarial("aten.cross*")
def parallel(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Parallel vectors of different lengths, whose cross product is zero."""
    return ascending(shape, dtype, device, 0) * (1 + input_idx)


@adversarial("aten.linalg_cross*")
@adversarial("aten.cross*")
def opposite(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Vectors of which the second input's point the other way, but for their last elements."""
    values = normal(shape, dtype, device, 0) * (-1) ** input_idx
    if input_idx and values.numel():
        values.view(-1)[-1] += 2
    return values


# Matrices: factorisations take none but these, and calls that take others meet them too.


def _is_matrix(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return len(shape) > 1 and shape[-1] == shape[-2] and _is_real(dtype)


def _diagonal(shape: tuple[int, ...], dtype: torch.dtype, value: float) -> torch.Tensor:
    return torch.eye(shape[-1], dtype=dtype) * value


@adversarial("aten.linalg_cholesky*")
@adversarial("aten.cholesky*")
@adversarial("aten.linalg_eigh*")
@adversarial("aten._linalg_eigh*")
def positive_definite(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Symmetric matrices with positive eigenvalues, which differ from matrix to matrix."""
    values = normal(shape, dtype, device, input_idx)
    return values @ values.mH + _diagonal(shape, dtype, 1 + input_idx) if _is_matrix(shape, dtype) else values


@adversarial("aten.linalg_solve_triangular*")
@adversarial("aten.triangular_solve*")
@adversarial("aten.cholesky_solve*")
@adversarial("aten.cholesky_inverse*")
def triangular(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
    """Lower triangular matrices far from singular, and what is solved for."""
    values = normal(shape, dtype, device, input_idx)
    return values.tril() + _diagonal(shape, dtype, 3) if _is_matrix(shape, dtype) else values
