"""Distances between the vectors of two lists: the gradient of the first list."""

from collections.abc import Iterator

import torch

from ...calls import Call
from ...placements import Row, Shards, partial, partials_of, shard
from ._register import hand
from ._rows import LINEAR, aligned, pass_through, row_of, sharded_dims


@hand("aten._cdist_backward.default")
def distances_backward(call: Call) -> Iterator[Row]:
    """A vector's gradient is the sum over the vectors of the other list, element by element."""
    grad = call.tensor_names[0]  # `grad_output` since torch 2.14
    first, second, ndim = call.shape("x1"), call.shape("x2"), len(call.shape(grad))
    batch = torch.broadcast_shapes(first[:-2], second[:-2])
    # Of nothing, the kernel returns zeros in the shape of the first list, as if that were not broadcast.
    shards: Shards = "any" if first[:-2] == batch else "nonempty"
    for dim in sharded_dims(batch):
        own = {name: aligned(call.shape(name), dim, ndim) for name in (grad, "x1", "x2", "cdist")}
        placed = {name: shard(place) for name, place in own.items() if place is not None}
        yield row_of(call, placed, shard(dim), shards)
    here, there = shard(ndim - 2), shard(ndim - 1)
    yield row_of(call, {grad: here, "x1": shard(len(first) - 2), "cdist": here}, here, shards)
    of_others = {grad: there, "x2": shard(len(second) - 2), "cdist": there}
    yield row_of(call, of_others, partial("sum"), shards)
    yield row_of(call, {"x1": shard(len(first) - 1), "x2": shard(len(second) - 1)}, there, shards)
    yield from pass_through(call, grad, LINEAR)
    if call["p"] == 2:  # differences, divided by the distance
        for p in partials_of(call["x1"].dtype, LINEAR):
            yield row_of(call, {"x1": p, "x2": p}, p)
