"""Normalisation over the last dims (layer), over groups of channels (group) or over all images (batch): whatever is
left outside can be cut."""

import math
from collections.abc import Iterator

from torch.distributed.tensor.placement_types import Placement

from ...calls import Call, Shape
from ...placements import Row, partial, partials_of, shard
from ._register import hand
from ._rows import LINEAR, R, dims, row_of

_SUM = partial("sum")


@hand("aten.native_layer_norm.default")
def layer_norm(call: Call) -> Iterator[Row]:
    for dim in _outside(call):
        yield row_of(call, {"input": shard(dim)}, shard(dim))
    yield from _weighted(call)


@hand("aten.native_layer_norm_backward.default")
def layer_norm_backward(call: Call) -> Iterator[Row]:
    for dim in _outside(call) if _has_statistics(call) else ():
        row = dict.fromkeys(("grad_out", "input", "mean", "rstd"), shard(dim))
        yield row_of(call, row, [shard(dim), _SUM, _SUM])
    yield from _weighted_backward(call)


@hand("shardwise.rms_norm.default")
def rms_norm(call: Call) -> Iterator[Row]:
    for dim in _outside(call):
        yield row_of(call, {"input": shard(dim)}, shard(dim))
    for p in partials_of(call["input"].dtype, LINEAR):
        yield row_of(call, {"weight": p}, [p, R])


@hand("shardwise.rms_norm_backward.default")
def rms_norm_backward(call: Call) -> Iterator[Row]:
    for dim in _outside(call):
        row = dict.fromkeys(("grad_out", "input", "rstd"), shard(dim))
        yield row_of(call, row, [shard(dim), _SUM])
    for p in partials_of(call["input"].dtype, LINEAR):
        yield row_of(call, {"grad_out": p}, p)
        yield row_of(call, {"weight": p}, [p, R])


def _has_statistics(call: Call) -> bool:
    """True if there is one mean for every part that is normalised: kernels take any shape for it."""
    kept = len(call.shape("input")) - len(call["normalized_shape"])
    expected = (*call.shape("input")[:kept], *[1] * len(call["normalized_shape"]))
    return call.shape("mean") == call.shape("rstd") == expected


def _outside(call: Call) -> list[int]:
    outside = len(call.shape("input")) - len(call["normalized_shape"])
    return [dim for dim in dims(call, "input") if dim < outside]


@hand("aten.native_group_norm.default")
def group_norm(call: Call) -> Iterator[Row]:
    if not _is_grouped(call):
        return
    if call["N"] > 1:
        yield row_of(call, {"input": shard(0)}, shard(0), local="sizes")
    if call["group"] > 1:
        row = {"input": shard(1), "weight": shard(0), "bias": shard(0)}
        yield row_of(call, row, shard(1), "even", local="sizes")
    yield from _weighted(call)


def _is_grouped(call: Call) -> bool:
    """True if the sizes that are given besides are those of the images: kernels trust them."""
    images, channels = call.shape("input"), call["C"]
    fits = images[:2] == (call["N"], channels) and math.prod(images[2:]) == call["HxW"]
    weights = (call.shape(name) for name in ("weight", "bias") if name in call and call.has(name))
    return fits and channels % call["group"] == 0 and all(shape == (channels,) for shape in weights)


@hand("aten.native_group_norm_backward.default")
def group_norm_backward(call: Call) -> Iterator[Row]:
    statistics = (call["N"], call["group"])
    if not _is_grouped(call) or call.shape("grad_out") != call.shape("input"):
        return
    if not call.shape("mean") == call.shape("rstd") == statistics:
        return
    of_images = ("grad_out", "input", "mean", "rstd")
    if call["N"] > 1:
        yield row_of(call, dict.fromkeys(of_images, shard(0)), [shard(0), _SUM, _SUM], local="sizes")
    if call["group"] > 1:
        row = dict.fromkeys(of_images, shard(1)) | {"weight": shard(0)}
        yield row_of(call, row, [shard(1), shard(0), shard(0)], "even", local="sizes")
    yield from _weighted_backward(call)


# They take the statistics of the images at hand, or (the third) where they are told so.
_BATCH_NORMS = (
    "aten._batch_norm_with_update.default",
    "aten._native_batch_norm_legit.no_stats",
    "aten._native_batch_norm_legit.default",
    "aten._native_batch_norm_legit_functional.default",
    "aten.native_batch_norm.default",
)
# They are given the statistics.
_BATCH_NORMS_GIVEN = (
    "aten._batch_norm_no_update.default",
    "aten._native_batch_norm_legit_no_training.default",
)


@hand(*_BATCH_NORMS)
def batch_norm(call: Call) -> Iterator[Row]:
    yield from _batch_norm(call, trains="training" not in call or bool(call["training"]))


@hand(*_BATCH_NORMS_GIVEN)
def batch_norm_given(call: Call) -> Iterator[Row]:
    yield from _batch_norm(call, trains=False)


def _batch_norm(call: Call, trains: bool) -> Iterator[Row]:
    channels = call.shape("input")[1]
    if channels > 1:
        row = {name: shard(1 if name == "input" else 0) for name in call.tensor_names}
        yield row_of(call, row, [_of_channels(shape, channels) for shape in call.outputs], "nonempty")
    if not trains:
        for dim in dims(call, "input"):
            if dim != 1:
                yield row_of(
                    call, {"input": shard(dim)}, [shard(dim), *[R] * (len(call.outputs) - 1)], "nonempty"
                )
    yield from _weighted(call)


def _of_channels(shape: Shape | None, channels: int) -> Placement:
    """Where an output has the channels: images have them second, statistics alone; what is not kept is empty."""
    if shape is None or shape in ((), (0,)):
        return R
    return shard(0) if shape == (channels,) else shard(1)


@hand("aten.native_batch_norm_backward.default")
def batch_norm_backward(call: Call) -> Iterator[Row]:
    channels = call.shape("input")[1]
    if channels > 1:
        row = {name: shard(1 if name in ("grad_out", "input") else 0) for name in call.tensor_names}
        yield row_of(call, row, [shard(1), shard(0), shard(0)], "nonempty")
    if not call["train"]:
        for dim in dims(call, "input"):
            if dim != 1:
                images = {"grad_out": shard(dim), "input": shard(dim)}
                yield row_of(call, images, [shard(dim), _SUM, _SUM], "nonempty")
    yield from _weighted_backward(call)


def _weighted(call: Call) -> Iterator[Row]:
    """The first output is normalised * weight + bias."""
    others = [R] * (len(call.outputs) - 1)
    for p in partials_of(call["input"].dtype, LINEAR):
        if call.has("weight"):
            yield row_of(call, {"weight": p, "bias": p}, [p, *others])
    if call.has("bias"):
        for p in partials_of(call["input"].dtype, ("max", "min")):
            yield row_of(call, {"bias": p}, [p, *others])


def _weighted_backward(call: Call) -> Iterator[Row]:
    """Gradients are linear in the output's; the input's also in the weight."""
    for p in partials_of(call["input"].dtype, LINEAR):
        yield row_of(call, {"grad_out": p}, p)
        if call.has("weight"):
            outputs: list[Placement] = [p, R, R]
            yield row_of(call, {"weight": p}, outputs)
