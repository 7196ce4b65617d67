"""Products of several tensors, summed over some of their dims."""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, partial, shard
from ._register import hand
from ._rows import LINEAR, pass_through, row_of


@hand("aten._trilinear.default")
def trilinear(call: Call) -> Iterator[Row]:
    """Each of three tensors lacks the dims that `expand` lists, and is the same along them."""
    inputs = ("i1", "i2", "i3")
    ndim = len(call.shape("i1")) + len(call["expand1"])
    lacking = [{dim % ndim for dim in call[f"expand{number}"]} for number in (1, 2, 3)]
    summed = {dim % ndim for dim in call["sumdim"]}
    has = [
        dict(zip((d for d in range(ndim) if d not in without), call.shape(name), strict=True))
        for name, without in zip(inputs, lacking, strict=True)
    ]
    for dim in range(ndim):
        size = max(sizes.get(dim, 1) for sizes in has)
        if size < 2:
            continue
        sharded = {
            name: shard(list(sizes).index(dim))
            for name, sizes in zip(inputs, has, strict=True)
            if sizes.get(dim) == size
        }
        before = sum(other < dim for other in summed)
        yield row_of(call, sharded, partial("sum") if dim in summed else shard(dim - before))
    for name in inputs:
        yield from pass_through(call, name, LINEAR)
