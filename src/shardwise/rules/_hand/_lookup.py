"""Reading at indices: embedding, gather, indexing. With the table's rows sharded every rank gives what it holds."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Placement

from ...calls import Call, Shape, is_tensor
from ...placements import Row, partial, partials_of, shard
from ._register import hand
from ._rows import ALL, KEEPING, LINEAR, R, aligned, dim_of, dims, pass_through, row_of, sharded_dims


def looked_up(call: Call, name: str, dim: int) -> Iterator[Row]:
    """The row for a sharded dim that is read by index: zeros and what is held add up to the whole."""
    for p in partials_of(call[name].dtype, ("sum",)) if call.shape(name)[dim] > 1 else ():
        yield row_of(call, {name: shard(dim)}, p, local="lookup")


@hand("aten.embedding.default")
def embedding(call: Call) -> Iterator[Row]:
    ndim = len(call.shape("indices"))
    if 1 in dims(call, "weight"):
        yield row_of(call, {"weight": shard(1)}, shard(ndim))
    for dim in dims(call, "indices"):
        yield row_of(call, {"indices": shard(dim)}, shard(dim))
    yield from looked_up(call, "weight", 0)
    yield from pass_through(call, "weight", ALL)


@hand("aten._unsafe_masked_index.default")
def masked_index(call: Call) -> Iterator[Row]:
    given = [index for index in call["indices"] if is_tensor(index)]
    if len(given) == len(call.shape("self")):  # of what the table keeps of its dims the mask's may be any
        ndim = len(call.output)

        def placed(shape: Shape, dim: int) -> Placement:
            own = aligned(shape, dim, ndim)
            return R if own is None else shard(own)

        for dim in sharded_dims(call.output):
            indices = [placed(tuple(index.shape), dim) for index in given]
            yield row_of(call, {"mask": placed(call.shape("mask"), dim), "indices": indices}, shard(dim))
    for p in partials_of(call["self"].dtype, ALL if call["fill"] == 0 else KEEPING):
        yield row_of(call, {"self": p}, p)


@hand("aten.embedding_dense_backward.default")
def embedding_dense_backward(call: Call) -> Iterator[Row]:
    grad, ndim = "grad_output", len(call.shape("indices"))
    if call.shape(grad)[:-1] != call.shape("indices"):
        return  # the kernel takes any shape of as many elements
    if ndim in dims(call, grad):
        yield row_of(call, {grad: shard(ndim)}, shard(1))
    for p in partials_of(call[grad].dtype, ("sum",)) if not call["scale_grad_by_freq"] else ():
        for dim in dims(call, "indices"):
            yield row_of(call, {grad: shard(dim), "indices": shard(dim)}, p)
    if call.output[0] > 1:
        yield row_of(call, {}, shard(0), local="lookup")
    yield from pass_through(call, grad, LINEAR)


_SUM, _MEAN = 0, 1


@hand("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(call: Call) -> Iterator[Row]:
    """Bags of features, summed or averaged: the other outputs follow from the indices alone. Of a maximum the last one
    says where it was found, feature by feature."""
    summed = call["mode"] in (_SUM, _MEAN)
    if 1 in dims(call, "weight"):
        yield row_of(call, {"weight": shard(1)}, [shard(1), R, R, R if summed else shard(1)])
    if not summed:
        return
    if 0 in dims(call, "weight"):
        yield row_of(call, {"weight": shard(0)}, [partial("sum"), R, R, R], local="lookup")
    for p in partials_of(call["weight"].dtype, LINEAR):
        yield row_of(call, {"weight": p}, [p, R, R, R])


@hand("aten._embedding_bag_backward.default", "aten._embedding_bag_dense_backward.default")
def embedding_bag_backward(call: Call) -> Iterator[Row]:
    if call["mode"] not in (_SUM, _MEAN) or len(call.shape("grad")) != 2:
        return
    if 1 in dims(call, "grad"):
        yield row_of(call, {"grad": shard(1)}, shard(1))
    if call.output[0] > 1 and not call["scale_grad_by_freq"]:
        yield row_of(call, {}, shard(0), local="lookup")
    yield from pass_through(call, "grad", LINEAR)


@hand("aten._embedding_bag_per_sample_weights_backward.default")
def embedding_bag_weights_backward(call: Call) -> Iterator[Row]:
    """The product of a bag's gradient and the features that were looked up for it. At indices that are padding the
    kernel leaves its result uninitialised."""
    if call.arguments.get("padding_idx", -1) >= 0:
        return
    if 1 in dims(call, "grad"):
        yield row_of(call, {"grad": shard(1), "weight": shard(1)}, partial("sum"), "nonempty")
    yield from pass_through(call, "grad", LINEAR)
    yield from pass_through(call, "weight", LINEAR)


@hand("aten.gather.default")
def gather(call: Call) -> Iterator[Row]:
    dim, table, index = dim_of(call), call.shape("self"), call.shape("index")
    for d in dims(call, "index"):
        if d == dim:
            yield row_of(call, {"index": shard(d)}, shard(d))
        elif table[d] == index[d]:
            yield row_of(call, {"self": shard(d), "index": shard(d)}, shard(d))
    if table:
        yield from looked_up(call, "self", dim)
    yield from pass_through(call, "self", ALL)


@hand("aten.index_select.default")
def index_select(call: Call) -> Iterator[Row]:
    dim = dim_of(call)
    for d in dims(call, "self"):
        if d != dim:
            yield row_of(call, {"self": shard(d)}, shard(d))
    if 0 in dims(call, "index"):
        yield row_of(call, {"index": shard(0)}, shard(dim))
    if call.shape("self"):
        yield from looked_up(call, "self", dim)
    yield from pass_through(call, "self", ALL)


@hand("aten.select.int")
def select(call: Call) -> Iterator[Row]:
    dim = dim_of(call)
    for d in dims(call, "self"):
        if d != dim:
            yield row_of(call, {"self": shard(d)}, shard(d - (d > dim)))
    yield from looked_up(call, "self", dim)
    yield from pass_through(call, "self", ALL)


class Indexing:
    """Advanced indexing: the dims that are indexed give way to those of the indices, broadcast together; these stand
    in the place of the first indexed dim, or in front where the indexed dims are not neighbours."""

    def __init__(self, whole: Shape, indices: list[Any]) -> None:
        self.indices = {dim: tuple(index.shape) for dim, index in enumerate(indices) if index is not None}
        self.shape: Shape = torch.broadcast_shapes(*self.indices.values()) if self.indices else ()
        given = list(self.indices)
        neighbours = given == list(range(given[0], given[-1] + 1))
        self.start = given[0] if neighbours else 0
        self.kept = [dim for dim in range(len(whole)) if dim not in self.indices]

    def position(self, dim: int) -> int:
        """Where a dim that is not indexed stands in the result."""
        place = self.kept.index(dim)
        return place + (len(self.shape) if place >= self.start else 0)

    def placed(self, dim: int) -> list[Placement]:
        """The indices' placements for a shard of dim `dim` of their common shape."""
        found = [aligned(shape, dim, len(self.shape)) for shape in self.indices.values()]
        return [R if own is None else shard(own) for own in found]


def by_position(call: Call) -> bool:
    """True unless an index is a mask, or there is none."""
    given = [index for index in call["indices"] if is_tensor(index)]
    return bool(given) and all(index.dtype not in (torch.bool, torch.uint8) for index in given)


@hand("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(call: Call) -> Iterator[Row]:
    if not by_position(call):
        return
    how = Indexing(call.shape("self"), call["indices"])
    for dim in dims(call, "self"):
        if dim in how.indices:
            yield from looked_up(call, "self", dim)
        else:
            yield row_of(call, {"self": shard(dim)}, shard(how.position(dim)))
    for dim in sharded_dims(how.shape):
        yield row_of(call, {"indices": how.placed(dim)}, shard(how.start + dim))
    yield from pass_through(call, "self", ALL)
