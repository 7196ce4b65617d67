"""Rows whose ranks communicate: reductions, norms and windows along the dim that is sharded.

They stand beside what rules say about these operators, and name a form in which ranks exchange what they need.
"""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, partial, shard
from ._register import more_rows
from ._rows import R, dim_of, dims, row_of

_SUM = partial("sum")


@more_rows("aten._softmax.default", "aten._log_softmax.default", name="parts")
def elementwise_result(call: Call) -> Iterator[Row]:
    dim = dim_of(call)
    if dim in dims(call, "self") and call["self"].dtype.is_floating_point:
        yield row_of(call, {"self": shard(dim)}, shard(dim), local="parts")


@more_rows("aten.cumsum.default", name="parts")
def running_sum(call: Call) -> Iterator[Row]:
    dim = dim_of(call)
    if dim in dims(call, "self"):
        yield row_of(call, {"self": shard(dim)}, shard(dim), local="parts")


@more_rows("aten._softmax_backward_data.default", "aten._log_softmax_backward_data.default", name="parts")
def softmax_backward(call: Call) -> Iterator[Row]:
    dim = dim_of(call, "output")
    if dim in dims(call, "output") and call.shape("grad_output") == call.shape("output"):
        yield row_of(call, {"grad_output": shard(dim), "output": shard(dim)}, shard(dim), local="parts")


@more_rows("aten.logsumexp.default", name="parts")
def logsumexp(call: Call) -> Iterator[Row]:
    ndim = len(call.shape("self"))
    along = {int(dim) % max(ndim, 1) for dim in call["dim"]} or set(range(ndim))
    for dim in dims(call, "self"):
        if dim in along and call["self"].dtype.is_floating_point:
            yield row_of(call, {"self": shard(dim)}, R, local="parts")


@more_rows("aten.max.dim", "aten.min.dim", "aten.argmax.default", "aten.argmin.default", name="parts")
def best(call: Call) -> Iterator[Row]:
    dtype = call["self"].dtype
    if call["dim"] is None or not call.shape("self") or not (dtype.is_floating_point or dtype.is_signed):
        return
    dim = dim_of(call)
    if dim in dims(call, "self"):
        yield row_of(call, {"self": shard(dim)}, R, local="parts")


@more_rows("aten.topk.default", name="parts")
def topk(call: Call) -> Iterator[Row]:
    """In order; otherwise the kernel may return them in any. Of equal elements it may choose any, too: a dtype of 16
    bits has many of them."""
    dim, dtype = dim_of(call), call["self"].dtype
    if dim in dims(call, "self") and dtype.is_floating_point and dtype.itemsize >= 4 and call["sorted"]:
        yield row_of(call, {"self": shard(dim)}, R, local="parts")


@more_rows("aten.native_layer_norm.default", "shardwise.rms_norm.default", name="statistics")
def norm(call: Call) -> Iterator[Row]:
    for dim, inner in _normalised(call):
        row = {"input": shard(dim)} | {name: shard(inner) for name in ("weight", "bias") if _has(call, name)}
        yield row_of(call, row, [shard(dim), *[R] * (len(call.outputs) - 1)], local="statistics")


@more_rows(
    "aten.native_layer_norm_backward.default", "shardwise.rms_norm_backward.default", name="statistics"
)
def norm_backward(call: Call) -> Iterator[Row]:
    if call.shape("grad_out") != call.shape("input"):
        return
    for dim, inner in _normalised(call):
        row = {"grad_out": shard(dim), "input": shard(dim)}
        row |= {name: shard(inner) for name in ("weight", "bias") if _has(call, name)}
        yield row_of(call, row, [shard(dim), *[shard(inner)] * (len(call.outputs) - 1)], local="statistics")


def _has(call: Call, name: str) -> bool:
    return name in call and call.has(name)


def _normalised(call: Call) -> Iterator[tuple[int, int]]:
    """The dims that are normalised, of the input and of its weight."""
    outside = len(call.shape("input")) - len(call["normalized_shape"])
    for dim in dims(call, "input"):
        if dim >= outside and call["input"].dtype.is_floating_point:
            yield dim, dim - outside


@more_rows("aten.native_group_norm.default", name="statistics")
def group_norm(call: Call) -> Iterator[Row]:
    for dim in dims(call, "input"):
        if dim >= 2:
            yield row_of(call, {"input": shard(dim)}, [shard(dim), R, R], local="statistics")


@more_rows("aten.native_group_norm_backward.default", name="statistics")
def group_norm_backward(call: Call) -> Iterator[Row]:
    if call.shape("grad_out") != call.shape("input"):
        return
    for dim in dims(call, "input"):
        if dim >= 2:
            row = {"grad_out": shard(dim), "input": shard(dim)}
            yield row_of(call, row, [shard(dim), _SUM, _SUM], local="statistics")


@more_rows(
    "aten._native_batch_norm_legit_functional.default",
    "aten._native_batch_norm_legit.no_stats",
    name="statistics",
)
def batch_norm(call: Call) -> Iterator[Row]:
    for dim in _of_all_images(call) if call["training"] else ():
        row = [shard(dim), *[R] * (len(call.outputs) - 1)]
        yield row_of(call, {"input": shard(dim)}, row, local="statistics")


@more_rows("aten.native_batch_norm_backward.default", name="statistics")
def batch_norm_backward(call: Call) -> Iterator[Row]:
    """The sums that every image's gradient needs are the gradients of weight and bias."""
    if not call["train"] or call.shape("grad_out") != call.shape("input"):
        return
    for dim in _of_all_images(call):
        row = {"grad_out": shard(dim), "input": shard(dim)}
        yield row_of(call, row, [shard(dim), R, R], local="statistics")


def _of_all_images(call: Call) -> list[int]:
    """The dims that one mean of a channel is of."""
    found = dims(call, "input") if call["input"].dtype.is_floating_point else []
    return [dim for dim in found if dim != 1]


@more_rows("aten.convolution.default", name="halo")
def convolution(call: Call) -> Iterator[Row]:
    for dim in _slid_over(call, "input"):
        yield row_of(call, {"input": shard(dim)}, shard(dim), local="halo")


@more_rows("aten.convolution_backward.default", name="halo")
def convolution_backward(call: Call) -> Iterator[Row]:
    for dim in _slid_over(call, "input"):
        row = {"grad_output": shard(dim), "input": shard(dim)}
        yield row_of(call, row, [shard(dim), _SUM, _SUM], local="halo")


def _slid_over(call: Call, name: str) -> list[int]:
    """The dims of images over which windows run, if they are a batch of images with channels."""
    shape = call.shape(name)
    is_batch = "weight" not in call or len(call.shape("weight")) == len(shape)
    return [dim for dim in dims(call, name) if dim >= 2] if is_batch and len(shape) >= 3 else []


@more_rows(
    *(f"aten.avg_pool{windows}d.default" for windows in (2, 3)),
    *(f"aten.max_pool{windows}d_with_indices.default" for windows in (2, 3)),
    name="halo",
)
def pooling(call: Call) -> Iterator[Row]:
    for dim in _pooled_dims(call):
        yield row_of(call, {"self": shard(dim)}, shard(dim), local="halo")


@more_rows("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default", name="halo")
def pooling_backward(call: Call) -> Iterator[Row]:
    for dim in _pooled_dims(call):
        yield row_of(call, {"grad_output": shard(dim), "self": shard(dim)}, shard(dim), local="halo")


@more_rows(*(f"aten.max_pool{windows}d_with_indices_backward.default" for windows in (2, 3)), name="halo")
def largest_backward(call: Call) -> Iterator[Row]:
    for dim in _pooled_dims(call):
        row = dict.fromkeys(("grad_output", "self", "indices"), shard(dim))
        yield row_of(call, row, shard(dim), local="halo")


def _pooled_dims(call: Call) -> list[int]:
    """The dims over which windows run, of a batch of images with channels."""
    windows = 3 if "pool3d" in call.name else 2
    if len(call.shape("self")) != windows + 2 or not call["self"].dtype.is_floating_point:
        return []
    return _slid_over(call, "self")
