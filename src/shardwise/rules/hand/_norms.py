"""Normalisation over the last dims (layer) or over groups of channels (group): whatever is left outside can be cut."""

from collections.abc import Iterator

from torch.distributed.tensor.placement_types import Placement

from ...placements import Row, partial, shard
from ._call import LINEAR, HandCall, R
from ._register import hand

_SUM = partial("sum")


@hand("aten.native_layer_norm.default")
def layer_norm(call: HandCall) -> Iterator[Row]:
    for dim in _outside(call):
        yield call.row({"input": shard(dim)}, shard(dim))
    yield from _weighted(call)


@hand("aten.native_layer_norm_backward.default")
def layer_norm_backward(call: HandCall) -> Iterator[Row]:
    for dim in _outside(call):
        row = dict.fromkeys(("grad_out", "input", "mean", "rstd"), shard(dim))
        yield call.row(row, [shard(dim), _SUM, _SUM])
    yield from _weighted_backward(call)


def _outside(call: HandCall) -> list[int]:
    outside = len(call.shape("input")) - len(call["normalized_shape"])
    return [dim for dim in call.dims("input") if dim < outside]


@hand("aten.native_group_norm.default")
def group_norm(call: HandCall) -> Iterator[Row]:
    if call["N"] > 1:
        yield call.row({"input": shard(0)}, shard(0), local="sizes")
    if call["group"] > 1:
        row = {"input": shard(1), "weight": shard(0), "bias": shard(0)}
        yield call.row(row, shard(1), "even", local="sizes")
    yield from _weighted(call)


@hand("aten.native_group_norm_backward.default")
def group_norm_backward(call: HandCall) -> Iterator[Row]:
    of_images = ("grad_out", "input", "mean", "rstd")
    if call["N"] > 1:
        yield call.row(dict.fromkeys(of_images, shard(0)), [shard(0), _SUM, _SUM], local="sizes")
    if call["group"] > 1:
        row = dict.fromkeys(of_images, shard(1)) | {"weight": shard(0)}
        yield call.row(row, [shard(1), shard(0), shard(0)], "even", local="sizes")
    yield from _weighted_backward(call)


def _weighted(call: HandCall) -> Iterator[Row]:
    """The output is normalised * weight + bias."""
    for p in call.partials(LINEAR, call["input"].dtype):
        if call.has("weight"):
            yield call.row({"weight": p, "bias": p}, [p, R, R])
    if call.has("bias"):
        for p in call.partials(("max", "min"), call["input"].dtype):
            yield call.row({"bias": p}, [p, R, R])


def _weighted_backward(call: HandCall) -> Iterator[Row]:
    """Gradients are linear in the output's; the input's also in the weight."""
    for p in call.partials(LINEAR, call["input"].dtype):
        yield call.row({"grad_out": p}, p)
        if call.has("weight"):
            outputs: list[Placement] = [p, R, R]
            yield call.row({"weight": p}, outputs)
