"""Views: the same elements under other dims.

The dims of input and output fall into groups with the same number of elements. A dim alone in its group is the same
dim. Of several, the first is the outermost on both sides: cut into equal parts, it holds the same elements.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from ...calls import Call, Shape
from ...placements import Row, shard
from ._register import hand
from ._rows import ALL, LINEAR, R, dim_of, dims, pass_through, row_of, sharded_dims


def dim_groups(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """The dims of both sides, of size 1 aside, in smallest groups of equal numbers of elements."""
    left, right = sharded_dims(before), sharded_dims(after)
    i = j = 0
    while i < len(left) and j < len(right):
        first, second = [left[i]], [right[j]]
        i, j = i + 1, j + 1
        have, want = before[first[0]], after[second[0]]
        while have != want:
            if have < want:
                first.append(left[i])
                have *= before[left[i]]
                i += 1
            else:
                second.append(right[j])
                want *= after[right[j]]
                j += 1
        yield first, second


@hand(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten._reshape_alias.default",
    "aten.view_copy.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
)
def view(call: Call) -> Iterator[Row]:
    before, after = call.shape("self"), call.output
    if 0 not in before:
        for first, second in dim_groups(before, after):
            same = len(first) == len(second) == 1
            yield row_of(
                call, {"self": shard(first[0])}, shard(second[0]), "any" if same else "even", local="sizes"
            )
    yield from pass_through(call, "self", ALL, local="sizes")


@hand("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(call: Call) -> Iterator[Row]:
    """Strides may lead anywhere, across pieces as well: where they do not, that is spurious. An offset is into the
    memory that a tensor lies in, which a piece may share with others. Pieces are contiguous, so the whole must be."""
    whole = call["self"]
    contiguous = not isinstance(whole, Tensor) or whole.is_contiguous()
    if call["storage_offset"] is None and contiguous:
        yield from pass_through(call, "self", ALL)


@hand("aten.expand.default", "aten.expand_copy.default")
def expand(call: Call) -> Iterator[Row]:
    before, after = call.shape("self"), call.output
    for dim in sharded_dims(after):
        own = dim - len(after) + len(before)
        kept = own >= 0 and before[own] == after[dim]
        yield row_of(call, {"self": shard(own) if kept else R}, shard(dim), local="sizes")
    yield from pass_through(call, "self", ALL)


@hand("aten.repeat.default")
def repeat(call: Call) -> Iterator[Row]:
    before, after, repeats = call.shape("self"), call.output, call["repeats"]
    for dim in sharded_dims(after):
        own = dim - len(after) + len(before)
        if own < 0 or before[own] == 1:
            yield row_of(call, {}, shard(dim), local="sizes")
        elif repeats[dim] == 1:
            yield row_of(call, {"self": shard(own)}, shard(dim))
    yield from pass_through(call, "self", ALL)


@hand("aten.slice_backward.default")
def slice_backward(call: Call) -> Iterator[Row]:
    grad, dim, step = "grad_output", dim_of(call, "grad_output"), call["step"]
    if len(call.shape(grad)) != len(call.output):  # it broadcasts into the slice
        yield from pass_through(call, grad, ALL)
        return
    yield from _into_zeros(call, grad, [(d, d) for d in dims(call, grad)])
    if step > 1 and dim in dims(call, grad) and call.output[dim] == step * call.shape(grad)[dim]:
        yield row_of(call, {grad: shard(dim)}, shard(dim), "even", local="sizes")


@hand("aten.select_backward.default")
def select_backward(call: Call) -> Iterator[Row]:
    dim = int(call["dim"]) % len(call.output)
    if len(call.shape("grad_output")) != len(call.output) - 1:  # it broadcasts into the slice
        yield from pass_through(call, "grad_output", ALL)
        return
    yield from _into_zeros(call, "grad_output", [(d, d + (d >= dim)) for d in dims(call, "grad_output")])
    if call.output[dim] > 1:
        yield row_of(call, {}, shard(dim), local="lookup")


@hand("aten.unfold_backward.default")
def unfold_backward(call: Call) -> Iterator[Row]:
    """The last dim of the gradient holds the windows' elements; what overlaps is added up."""
    if not _is_unfolded(call):
        return
    for d in dims(call, "grad_in"):
        if d < len(call.output) and d != call["dim"]:
            yield row_of(call, {"grad_in": shard(d)}, shard(d), local="sizes")
    yield from pass_through(call, "grad_in", LINEAR)


def _is_unfolded(call: Call) -> bool:
    """True if the gradient has the windows that unfolding gives: the kernel takes other shapes, and does not count dims
    from the end."""
    grad, dim, size = call.shape("grad_in"), call["dim"], call["size"]
    if not 0 <= dim < len(call.output) or len(grad) != len(call.output) + 1:
        return False
    windows = (call.output[dim] - size) // call["step"] + 1
    return grad == (*call.output[:dim], windows, *call.output[dim + 1 :], size)


def _into_zeros(call: Call, name: str, pairs: Sequence[tuple[int, int]]) -> Iterator[Row]:
    """A gradient put into a tensor of zeros: dims that are as large there as here can be sharded."""
    grad = call.shape(name)
    for own, other in pairs:
        if grad[own] == call.output[other]:
            yield row_of(call, {name: shard(own)}, shard(other), local="sizes")
    yield from pass_through(call, name, ALL)
