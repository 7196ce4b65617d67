"""Products of tensors, summed over some of their dims: of three at once, and linear layers."""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, partial, shard
from ._register import hand, more_rows
from ._rows import LINEAR, dims, pass_through, row_of

_FACTORS = ("i1", "i2", "i3")


@hand("aten._trilinear.default")
def trilinear(call: Call) -> Iterator[Row]:
    """Each of three tensors lacks the dims that `expand` lists, and is the same along them."""
    ndim = len(call.shape("i1")) + len(call["expand1"])
    summed = {dim % ndim for dim in call["sumdim"]} if ndim else set()
    dims_of = {
        name: [dim for dim in range(ndim) if dim not in call[f"expand{name[1:]}"]] for name in _FACTORS
    }
    if any(len(dims) != len(call.shape(name)) for name, dims in dims_of.items()):
        return
    sizes = [
        {call.shape(name)[dims.index(dim)] for name, dims in dims_of.items() if dim in dims} or {1}
        for dim in range(ndim)
    ]
    made = tuple(max(sizes[dim]) for dim in range(ndim) if dim not in summed)
    # The kernel takes factors that do not fit together, and loops over as much as the first has.
    if any(len(size) > 1 or 0 in size for size in sizes) or call.output != made:
        return
    for dim in range(ndim):
        if sizes[dim] != {1}:
            sharded = {name: shard(dims.index(dim)) for name, dims in dims_of.items() if dim in dims}
            before = sum(other < dim for other in summed)
            yield row_of(call, sharded, partial("sum") if dim in summed else shard(dim - before))
    for name in _FACTORS:
        yield from pass_through(call, name, LINEAR)


def _rows(call: Call) -> list[int]:
    """The dims of a layer's input that count rows, and have something to shard."""
    return [dim for dim in dims(call, "input") if dim < len(call.shape("input")) - 1]


def _is_layer(call: Call) -> bool:
    """False for shapes that do not fit together."""
    input, weight = call.shape("input"), call.shape("weight")
    return len(weight) == 2 and len(input) > 1 and input[-1] == weight[1]


@hand("shardwise.linear.default")
def linear(call: Call) -> Iterator[Row]:
    if not _is_layer(call):
        return
    last = len(call.shape("input")) - 1
    for dim in _rows(call):
        yield row_of(call, {"input": shard(dim)}, shard(dim))
    if 0 in dims(call, "weight"):
        yield row_of(call, {"weight": shard(0)}, shard(last))
    if 1 in dims(call, "weight"):
        yield row_of(call, {"input": shard(last), "weight": shard(1)}, partial("sum"))
    for name in ("input", "weight"):
        yield from pass_through(call, name, LINEAR)


@more_rows("shardwise.linear.default", name="split")
def split_layer(call: Call) -> Iterator[Row]:
    """Rows are gathered, or results scattered, in pieces."""
    if not _is_layer(call):
        return
    last = len(call.shape("input")) - 1
    for dim in _rows(call):
        if 0 in dims(call, "weight"):
            yield row_of(call, {"input": shard(dim), "weight": shard(0)}, shard(last), local="split")
        if 1 in dims(call, "weight"):
            yield row_of(call, {"input": shard(last), "weight": shard(1)}, shard(dim), local="split")


def _is_gradient(call: Call) -> bool:
    grad, input = call.shape("grad"), call.shape("input")
    return len(input) > 1 and grad[:-1] == input[:-1]


@hand("shardwise.linear_weight.default")
def linear_weight(call: Call) -> Iterator[Row]:
    if not _is_gradient(call):
        return
    last = len(call.shape("input")) - 1
    for dim in _rows(call):
        yield row_of(call, {"grad": shard(dim), "input": shard(dim)}, partial("sum"))
    for place, name in enumerate(("grad", "input")):
        if last in dims(call, name):
            yield row_of(call, {name: shard(last)}, shard(place))
        yield from pass_through(call, name, LINEAR)


@more_rows("shardwise.linear_weight.default", name="split")
def split_gradient(call: Call) -> Iterator[Row]:
    if not _is_gradient(call):
        return
    last = len(call.shape("input")) - 1
    for place, (name, other) in enumerate((("grad", "input"), ("input", "grad"))):
        if last in dims(call, name):
            for dim in _rows(call):
                yield row_of(call, {name: shard(last), other: shard(dim)}, shard(place), local="split")
