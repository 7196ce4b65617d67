"""Small calls like a large one, on real tensors: what is found for them holds for the large one as well.

Sizes that are equal stay equal, those that differ stay different. Whether a number among the arguments is a size is
known to the operator alone, so a number is left as it is, then changed with the sizes that it is equal to or a part of,
and a call is taken if its outputs have the sizes that they should.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from ._arguments import Shape
from ._call import Call
from ._sizes import resized


def small_calls(call: Call, sizings: Iterable[Mapping[int, int]] | None = None) -> Iterator[Call]:
    """Calls like this one, the outputs of which are known, with small sizes, that run on meta tensors. `sizings` are
    the ways to try, each with what becomes of sizes; with these given, calls follow whose outputs have other sizes
    than they should (padding adds the same to every size)."""
    ways = list(_small_sizes(_sizes(call)) if sizings is None else sizings)
    for sizes in ways:
        wanted = tuple(None if s is None else tuple(sizes.get(n, n) for n in s) for s in call.outputs)
        tried = []
        for numbers in ({}, sizes, _with_parts(sizes)):
            small = resized(call, sizes, numbers)
            if small.signature not in tried and _outputs(small) == wanted:
                yield small.with_tensors([_example(t) for t in small.tensors], wanted)
            tried.append(small.signature)
    for sizes in ways if sizings is not None else ():
        small = resized(call, sizes)
        made = _outputs(small)
        if made is not None and list(map(_ndim, made)) == list(map(_ndim, call.outputs)):
            yield small.with_tensors([_example(t) for t in small.tensors], made)


def _ndim(shape: Shape | None) -> int | None:
    return None if shape is None else len(shape)


def small_sizings(call: Call, cuts: Sequence[tuple[int, int]]) -> Iterator[dict[int, int]]:
    """Ways to make the sizes of a call small for a smaller mesh: `cuts` are the numbers of pieces into which dims may
    be cut, there and here. What can be divided there can be here, and what cannot cannot; sizes that divide those of
    the same dim of other tensors (heads, groups) still do, and products of neighbouring dims stay products where they
    can.
    """
    sizes, beside = _sizes(call), _beside(call)
    products = _products(call, sizes)
    for kept in [products, {}] if products else [{}]:
        found: dict[int, int] = {}
        for size in sizes:
            parts = [found[one] for one in beside.get(size, ()) if size % one == 0]
            if (small := _small_size(size, cuts, found, parts, kept.get(size))) is None:
                break
            found[size] = small
        else:
            yield found
    yield from _small_sizes(sizes)


def _small_size(
    size: int,
    cuts: Sequence[tuple[int, int]],
    found: Mapping[int, int],
    divisors: Sequence[int],
    factors: Sequence[int] | None,
) -> int | None:
    options: Iterable[int] = range(2, 512)
    if factors is not None:
        options = [math.prod(found[factor] for factor in factors)]
    least = min(size, 2 * max((few for many, few in cuts if size % many == 0), default=1))
    for small in options:
        if (
            small >= least
            and small not in found.values()
            and all((size % many == 0) == (small % few == 0) for many, few in cuts)
            and all(small % divisor == 0 for divisor in divisors)
        ):
            return small
    return None


def _beside(call: Call) -> dict[int, set[int]]:
    """For each size the smaller ones that other tensors with as many dims have in its place."""
    found: dict[int, set[int]] = {}
    for some, other in itertools.permutations(set(_shapes(call)), 2):
        if len(some) == len(other):
            for size, smaller in zip(some, other, strict=True):
                if 1 < smaller < size:
                    found.setdefault(size, set()).add(smaller)
    return found


def _products(call: Call, sizes: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The sizes that are those of neighbouring dims multiplied, with these."""
    found: dict[int, tuple[int, ...]] = {}
    for shape in _shapes(call):
        real = [size for size in shape if size > 1]
        for start, stop in itertools.combinations(range(len(real) + 1), 2):
            if stop - start > 1 and (size := math.prod(real[start:stop])) in sizes:
                found.setdefault(size, tuple(real[start:stop]))
    return found


def _shapes(call: Call) -> list[Shape]:
    return [*call.shapes, *(shape for shape in call.outputs if shape is not None)]


def _sizes(call: Call) -> list[int]:
    return sorted({size for shape in _shapes(call) for size in shape if size > 1})


def _small_sizes(sizes: Sequence[int]) -> Iterator[dict[int, int]]:
    """Ways to make sizes small: each another one; all by the same factor; as they are, if they are small."""
    yield {size: 4 + 2 * i for i, size in enumerate(sizes)}
    yield {size: 2 ** (i + 2) for i, size in enumerate(sizes)}
    factor = 2
    while sizes and all(size % factor == 0 and size // factor > 1 for size in sizes):
        factor *= 2
    yield {size: size // (factor // 2) for size in sizes}
    if not sizes or max(sizes) <= 64:
        yield {}


def _with_parts(sizes: Mapping[int, int]) -> dict[int, int]:
    """What becomes of numbers that are sizes or parts of sizes: parts change in proportion."""
    numbers = dict(sizes)
    for size, small in sizes.items():
        for parts in range(2, small + 1):
            if size % parts == 0 and small % parts == 0:
                numbers.setdefault(size // parts, small // parts)
    return numbers


def _outputs(call: Call) -> tuple[Shape | None, ...] | None:
    """The shapes of a call's outputs, from a run on meta tensors; None where it does not take these sizes."""
    try:
        return call.on_meta().outputs
    except Exception:  # whatever an operator raises, it does not take these sizes
        return None


def _example(tensor: torch.Tensor) -> torch.Tensor:
    """Values of its own generator: the program's random state is left alone, and found is the same every time."""
    random = torch.Generator().manual_seed(0)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return torch.rand(tensor.shape, dtype=tensor.dtype, generator=random)
    return torch.randint(0, 2, tensor.shape, generator=random).to(tensor.dtype)
