"""Products of several tensors, summed over some of their dims."""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, partial, shard
from ._register import hand
from ._rows import LINEAR, pass_through, row_of

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
