"""Products of tensors, summed over some of their dims: of three at once, and linear layers."""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, Shards, partial, shard
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


@hand("aten._grouped_mm.default")
def grouped_product(call: Call) -> Iterator[Row]:
    """A matrix for each run of rows, the rows or columns that runs of both give, or a batch of products. A rank needs
    to know where the groups end among its rows (`runs`), and kernels cannot read pieces whose rows begin anywhere."""
    first, second = (len(call.shape(name)) for name in ("self", "mat2"))
    if not _is_grouped(call):
        return
    for inputs, output, shards in _GROUPED[first, second]:
        placed = {name: shard(dim) for name, dim in inputs.items()}
        sizes = {call.shape(name)[dim] for name, dim in inputs.items()} or {call.output[0]}
        if max(sizes) > 1:
            yield row_of(call, placed, partial("sum") if output is None else shard(output), shards, "runs")
    for name in ("self", "mat2"):
        yield from pass_through(call, name, LINEAR, local="runs")


# By the number of dims of both factors: the dims that rows shard, and that of the result, None where it is summed over.
# A dim that holds multiples of 16 bytes has elements for every rank that the experiments have.
_GROUPED: dict[tuple[int, int], list[tuple[dict[str, int], int | None, Shards]]] = {
    (2, 3): [
        ({"self": 0}, 0, "any"),  # rows
        ({"mat2": 0}, None, "any"),  # groups
        ({"mat2": 2}, 1, "nonempty"),  # columns
        ({"self": 1, "mat2": 1}, None, "nonempty"),
    ],
    (2, 2): [
        ({"self": 0}, 1, "nonempty"),
        ({"mat2": 1}, 2, "nonempty"),
        ({"self": 1, "mat2": 0}, None, "nonempty"),  # what each group sums over
        ({}, 0, "any"),  # groups
    ],
    (3, 2): [
        ({"self": 1}, 0, "any"),
        ({"mat2": 1}, 1, "nonempty"),
        ({"self": 0}, None, "any"),
        ({"self": 2, "mat2": 0}, None, "nonempty"),
    ],
    (3, 3): [
        ({"self": 0, "mat2": 0}, 0, "any"),
        ({"self": 1}, 1, "any"),
        ({"mat2": 2}, 2, "nonempty"),
        ({"self": 2, "mat2": 1}, None, "nonempty"),
    ],
}


def _is_grouped(call: Call) -> bool:
    """False for shapes that do not fit together, and for a bias, which no kernel takes."""
    self, mat2 = call.shape("self"), call.shape("mat2")
    if (len(self), len(mat2)) not in _GROUPED or call.has("bias"):
        return False
    if len(self) == len(mat2) == 3:
        return not call.has("offs") and self[0] == mat2[0] and self[2] == mat2[1]
    if not call.has("offs") or len(call.shape("offs")) != 1 or call["offs"].dtype.is_floating_point:
        return False
    stacked = next((shape[0] for shape in (self, mat2) if len(shape) == 3), None)
    return self[-1] == mat2[-2] and stacked in (None, call.shape("offs")[0])


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
