"""Copies: to another dtype, of one value into a tensor, of a tensor into a slice of another.

Every element is copied by itself, so any dim can be cut. Which partials pass a change of dtype is a matter of the two
dtypes: an order survives where neither sign nor size is lost, a sum where no digits are.
"""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, partials_of, shard
from .._partials import passing
from ._register import hand
from ._rows import ALL, R, dim_of, dims, pass_through, row_of


@hand("aten._to_copy.default")
def to_copy(call: Call) -> Iterator[Row]:
    before = call["self"].dtype
    after = call["dtype"] or before
    for dim in dims(call, "self"):
        yield row_of(call, {"self": shard(dim)}, shard(dim))
    kept = partials_of(after, passing(before, after))
    yield from pass_through(call, "self", [p.reduce_op for p in kept])


@hand("aten.fill.Tensor")
def fill(call: Call) -> Iterator[Row]:
    """Of what is filled only the shape matters."""
    for dim in dims(call, "self"):
        yield row_of(call, {"self": shard(dim)}, shard(dim))
    for p in partials_of(call["self"].dtype, ALL):
        yield row_of(call, {"self": p}, R)
    for p in partials_of(call["value"].dtype, ALL):
        yield row_of(call, {"value": p}, p)
        yield from (
            row_of(call, {"self": q, "value": p}, p) for q in partials_of(call["self"].dtype, [p.reduce_op])
        )


@hand("aten.slice_scatter.default")
def slice_scatter(call: Call) -> Iterator[Row]:
    dim = dim_of(call)
    for d in dims(call, "self"):
        if d != dim or call.shape("src")[dim] == call.shape("self")[dim]:
            yield row_of(call, {"self": shard(d), "src": shard(d)}, shard(d))
    for p in partials_of(call["self"].dtype, ALL):
        yield row_of(call, {"self": p, "src": p}, p)
