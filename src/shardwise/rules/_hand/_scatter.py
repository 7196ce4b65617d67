"""Writing at indices: scatter and assignment by index. With the written dim sharded a rank leaves out what lies
elsewhere."""

from collections.abc import Iterator
from itertools import product

import torch
from torch.distributed.tensor.placement_types import Placement

from ...calls import Call
from ...placements import Row, partials_of, shard
from ._lookup import Indexing, by_position
from ._register import hand
from ._rows import ALL, KEEPING, LINEAR, R, aligned, dim_of, dims, pass_through, row_of, sharded_dims


@hand("aten.scatter.value")
def scatter_value(call: Call) -> Iterator[Row]:
    yield from _shards(call, ("self", "index"))
    for p in partials_of(call["self"].dtype, ALL if call["value"] == 0 else KEEPING):
        yield row_of(call, {"self": p}, p)


@hand("aten.scatter.src")
def scatter(call: Call) -> Iterator[Row]:
    yield from _shards(call, ("self", "index", "src"))
    for p in partials_of(call["self"].dtype, ALL):
        yield row_of(call, {"self": p, "src": p}, p)


@hand("aten.scatter_add.default")
def scatter_add(call: Call) -> Iterator[Row]:
    yield from _shards(call, ("self", "index", "src"))
    dim, alike = dim_of(call), len(call.shape("self")) == len(call.shape("index")) == len(call.shape("src"))
    if alike and dim in dims(call, "index") and call.shape("index")[dim] == call.shape("src")[dim]:
        for p in partials_of(call["self"].dtype, ("sum",)):
            yield row_of(call, {"self": p, "index": shard(dim), "src": shard(dim)}, p)
    yield from _added(call, "src")


def _added(call: Call, name: str) -> Iterator[Row]:
    """Partials through the sum of what was there and what is added."""
    for p in partials_of(call["self"].dtype, LINEAR):
        yield row_of(call, {"self": p, name: p}, p)
    yield from pass_through(call, "self", ("max", "min"))


def _shards(call: Call, names: tuple[str, ...]) -> Iterator[Row]:
    """Dims beside the indexed one, where all are of one size, and the indexed one by lookup."""
    dim, whole = dim_of(call), call.shape("self")
    if any(len(call.shape(name)) != len(whole) for name in names) or call["index"].dtype == torch.bool:
        return  # kernels take an index without elements that has other dims, or truth values
    for d in dims(call, "self"):
        if d == dim:
            yield row_of(call, {"self": shard(d)}, shard(d), local="lookup")
        elif all(call.shape(name)[d] == whole[d] for name in names):
            yield row_of(call, {name: shard(d) for name in names}, shard(d))


@hand("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(call: Call) -> Iterator[Row]:
    if not by_position(call):
        return
    whole, values = call.shape("self"), call.shape("values")
    how = Indexing(whole, call["indices"])
    ndim = len(how.kept) + len(how.shape)

    def value(dim: int) -> Placement:
        own = aligned(values, dim, ndim)
        return R if own is None else shard(own)

    for dim in dims(call, "self"):
        if dim in how.indices:
            yield row_of(call, {"self": shard(dim)}, shard(dim), local="lookup")
        else:
            yield row_of(call, {"self": shard(dim), "values": value(how.position(dim))}, shard(dim))
    if call["accumulate"]:
        for p, dim in product(partials_of(call["self"].dtype, ("sum",)), sharded_dims(how.shape)):
            placed = {"indices": how.placed(dim), "values": value(how.start + dim)}
            yield row_of(call, {"self": p, **placed}, p)
        yield from _added(call, "values")
        if all(value(how.start + dim) == R for dim in sharded_dims(how.shape)):  # every index adds the same
            yield from pass_through(call, "values", ("max", "min"))
        return
    for p in partials_of(call["self"].dtype, ALL):
        yield row_of(call, {"self": p, "values": p}, p)
