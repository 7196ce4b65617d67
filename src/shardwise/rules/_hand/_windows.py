"""Padding, and the backward of pooling and resampling: dims over which no window runs can be cut.

What is pooled has as many last dims as the operator's name says; those in front are a batch, with or without channels.
Gradients are linear in the output's.
"""

from collections.abc import Iterator

import torch

from ...calls import Call
from ...placements import Row, shard
from ._register import hand
from ._rows import ALL, KEEPING, LINEAR, dims, pass_through, row_of


@hand("aten.constant_pad_nd.default")
def constant_pad(call: Call) -> Iterator[Row]:
    before, after, pad = call.shape("self"), call.output, call["pad"]
    for dim in dims(call, "self"):
        place = 2 * (len(before) - 1 - dim)
        if before[dim] == after[dim] and not any(pad[place : place + 2]):
            yield row_of(call, {"self": shard(dim)}, shard(dim))
    yield from pass_through(call, "self", ALL if call["value"] == 0 else KEEPING)


def _register_pad(kind: str, windows: int) -> None:
    @hand(f"aten.{kind}_pad{windows}d.default")
    def pad(call: Call) -> Iterator[Row]:
        for dim in dims(call, "self"):
            if dim < len(call.output) - windows:
                batch = dim == 0 and len(call.output) == windows + 2  # which may be empty, unlike channels
                yield row_of(call, {"self": shard(dim)}, shard(dim), "any" if batch else "nonempty")
        yield from pass_through(call, "self", ALL)


for _windows in (1, 2, 3):
    _register_pad("reflection", _windows)
    _register_pad("replication", _windows)


def _register_fractional(windows: int) -> None:
    @hand(f"aten.fractional_max_pool{windows}d.default")
    def fractional(call: Call) -> Iterator[Row]:
        """Where windows lie is given for every channel; an image alone has those of a batch of one."""
        images, samples = call.shape("self"), call.shape("random_samples")
        batch = images[:-windows]
        if not 1 <= len(batch) <= 2 or samples != (*([1] * (2 - len(batch))), *batch, windows):
            return
        for dim in dims(call, "self"):
            if dim < len(batch):
                row = {"self": shard(dim), "random_samples": shard(dim + 2 - len(batch))}
                # The first dim may be empty, unlike the channels of a batch.
                yield row_of(call, row, [shard(dim)] * 2, "any" if dim == 0 else "nonempty")


for _windows in (2, 3):
    _register_fractional(_windows)


# Of the forward's input they are told the shape.
_RESAMPLED = (
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    "upsample_trilinear3d",
)
# They are given the forward's input, and some its indices.
_POOLED = {
    "avg_pool2d": 2,
    "avg_pool3d": 3,
    "_adaptive_avg_pool2d": 2,
    "_adaptive_avg_pool3d": 3,
    "adaptive_max_pool2d": 2,
    "adaptive_max_pool3d": 3,
    "fractional_max_pool2d": 2,
    "fractional_max_pool3d": 3,
    "max_pool2d_with_indices": 2,
    "max_pool3d_with_indices": 3,
    "reflection_pad1d": 1,
    "reflection_pad2d": 2,
    "reflection_pad3d": 3,
    "replication_pad1d": 1,
    "replication_pad2d": 2,
    "replication_pad3d": 3,
}
# Of these, the ones whose windows divide the input and whose results do not name places in it.
_AVERAGED = ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")


@hand(*(f"aten.{name}_backward.default" for name in _RESAMPLED))
def upsample_backward(call: Call) -> Iterator[Row]:
    for dim in dims(call, "grad_output"):
        if dim < 2:
            yield row_of(call, {"grad_output": shard(dim)}, shard(dim), local="sizes")
    yield from pass_through(call, "grad_output", LINEAR)


# Their kernels are too slow for a sweep; the others' rules are found by experiments.
@hand("aten.upsample_bicubic2d.default", "aten.upsample_trilinear3d.default")
def upsample(call: Call) -> Iterator[Row]:
    for dim in (0, 1):
        yield row_of(call, {"self": shard(dim)}, shard(dim), "any" if dim == 0 else "nonempty")
    yield from pass_through(call, "self", LINEAR)


def _is_pooled(call: Call, outside: int) -> bool:
    """True if the tensors have the shapes that pooling gives: kernels take others, with more dims or channels, and
    leave some of the gradient at zero. Integers are divided with a remainder."""
    before, after = call.shape("self"), call.shape("grad_output")
    fits = 1 <= outside <= 2 and before == call.output and after[:outside] == before[:outside]
    found_at = call.shape("indices") if "indices" in call else after
    return fits and len(after) == len(before) and found_at == after and _is_real(call["grad_output"].dtype)


def _is_real(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _register_pooled(name: str, windows: int) -> None:
    @hand(f"aten.{name}_backward.default")
    def pooled_backward(call: Call) -> Iterator[Row]:
        outside = len(call.output) - windows
        if not _is_pooled(call, outside):
            return
        for dim in dims(call, "grad_output"):
            if dim < outside:
                yield row_of(call, dict.fromkeys(call.tensor_names, shard(dim)), shard(dim), "nonempty")
            elif name in _AVERAGED and call.shape("self")[dim] % call.shape("grad_output")[dim] == 0:
                # The windows are as long as they are apart: those of a shard lie in the shard.
                yield row_of(call, {"grad_output": shard(dim), "self": shard(dim)}, shard(dim), "even")
        yield from pass_through(call, "grad_output", LINEAR)


for _name, _windows in _POOLED.items():
    _register_pooled(_name, _windows)
