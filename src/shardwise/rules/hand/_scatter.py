"""Writing at indices: scatter and assignment by index. With the written dim sharded a rank leaves out what lies
elsewhere."""

from collections.abc import Iterator

from torch.distributed.tensor.placement_types import Placement

from ...placements import Row, partial, shard
from ..hand._call import ALL, KEEPING, LINEAR, HandCall, R, aligned, pass_through, sharded_dims
from ..hand._lookup import Indexing, by_position
from ..hand._register import hand


@hand("aten.scatter.value")
def scatter_value(call: HandCall) -> Iterator[Row]:
    yield from _shards(call, ("self", "index"))
    for p in call.partials("self", ALL if call["value"] == 0 else KEEPING):
        yield call.row({"self": p}, p)


@hand("aten.scatter.src")
def scatter(call: HandCall) -> Iterator[Row]:
    yield from _shards(call, ("self", "index", "src"))
    for p in call.partials("self", ALL):
        yield call.row({"self": p, "src": p}, p)


@hand("aten.scatter_add.default")
def scatter_add(call: HandCall) -> Iterator[Row]:
    yield from _shards(call, ("self", "index", "src"))
    dim = call.dim()
    if (
        call.shape("self")
        and dim in call.dims("index")
        and call.shape("index")[dim] == call.shape("src")[dim]
    ):
        yield call.row({"self": partial("sum"), "index": shard(dim), "src": shard(dim)}, partial("sum"))
    yield from _added(call, "src")


def _added(call: HandCall, name: str) -> Iterator[Row]:
    """Partials through the sum of what was there and what is added."""
    for p in call.partials("self", LINEAR):
        yield call.row({"self": p, name: p}, p)
    yield from pass_through(call, "self", ("max", "min"))


def _shards(call: HandCall, names: tuple[str, ...]) -> Iterator[Row]:
    """Dims beside the indexed one, where all are of one size, and the indexed one by lookup."""
    dim, whole = call.dim(), call.shape("self")
    for d in call.dims("self"):
        if d == dim:
            yield call.row({"self": shard(d)}, shard(d), local="lookup")
        elif all(call.shape(name)[d] == whole[d] for name in names):
            yield call.row({name: shard(d) for name in names}, shard(d))


@hand("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(call: HandCall) -> Iterator[Row]:
    if not by_position(call):
        return
    whole, values = call.shape("self"), call.shape("values")
    how = Indexing(whole, call["indices"])
    ndim = len(how.kept) + len(how.shape)

    def value(dim: int) -> Placement:
        own = aligned(values, dim, ndim)
        return R if own is None else shard(own)

    for dim in call.dims("self"):
        if dim in how.indices:
            yield call.row({"self": shard(dim)}, shard(dim), local="lookup")
        else:
            yield call.row({"self": shard(dim), "values": value(how.position(dim))}, shard(dim))
    if call["accumulate"]:
        for dim in sharded_dims(how.shape):
            placed = {"indices": how.placed(dim), "values": value(how.start + dim)}
            yield call.row({"self": partial("sum"), **placed}, partial("sum"))
        yield from _added(call, "values")
        if all(value(how.start + dim) == R for dim in sharded_dims(how.shape)):  # every index adds the same
            yield from pass_through(call, "values", ("max", "min"))
        return
    for p in call.partials("self", ALL):
        yield call.row({"self": p, "values": p}, p)
