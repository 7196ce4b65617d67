"""Small calls like a large one, on real tensors: what is found for them holds for the large one as well.

Sizes that are equal stay equal, those that differ stay different. Whether a number among the arguments is a size is
known to the operator alone, so a number is left as it is, then changed with the sizes that it is equal to or a part of,
and a call is taken if its outputs have the sizes that they should.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from ._arguments import Shape
from ._call import Call
from ._sizes import resized


def small_calls(call: Call) -> Iterator[Call]:
    """Calls like this one, the outputs of which are known, with small sizes, that run on meta tensors."""
    shapes = [*call.shapes, *(shape for shape in call.outputs if shape is not None)]
    for sizes in _small_sizes(sorted({size for shape in shapes for size in shape if size > 1})):
        wanted = tuple(None if s is None else tuple(sizes.get(n, n) for n in s) for s in call.outputs)
        tried = []
        for numbers in ({}, sizes, _with_parts(sizes)):
            small = resized(call, sizes, numbers)
            if small.signature not in tried and _outputs(small) == wanted:
                yield small.with_tensors([_example(t) for t in small.tensors], wanted)
            tried.append(small.signature)


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
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return torch.rand(tensor.shape, dtype=tensor.dtype)
    return torch.randint(0, 2, tensor.shape).to(tensor.dtype)
