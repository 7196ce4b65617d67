"""Padding with a value: dims that are not padded can be cut. Resampling backwards: all but the resampled dims."""

from collections.abc import Iterator

from ...placements import Row, shard
from ._call import ALL, KEEPING, LINEAR, HandCall, pass_through
from ._register import hand


@hand("aten.constant_pad_nd.default")
def constant_pad(call: HandCall) -> Iterator[Row]:
    before, after, pad = call.shape("self"), call.output, call["pad"]
    for dim in call.dims("self"):
        place = 2 * (len(before) - 1 - dim)
        if before[dim] == after[dim] and not any(pad[place : place + 2]):
            yield call.row({"self": shard(dim)}, shard(dim))
    yield from pass_through(call, "self", ALL if call["value"] == 0 else KEEPING)


_RESAMPLED = {
    "upsample_nearest1d": 1,
    "upsample_nearest2d": 2,
    "upsample_nearest3d": 3,
    "_upsample_nearest_exact1d": 1,
    "_upsample_nearest_exact2d": 2,
    "_upsample_nearest_exact3d": 3,
    "upsample_linear1d": 1,
    "upsample_bilinear2d": 2,
    "upsample_bicubic2d": 2,
    "_upsample_bilinear2d_aa": 2,
    "_upsample_bicubic2d_aa": 2,
    "upsample_trilinear3d": 3,
}


@hand(*(f"aten.{name}_backward.default" for name in _RESAMPLED))
def upsample_backward(call: HandCall) -> Iterator[Row]:
    for dim in call.dims("grad_output"):
        if dim < 2:
            yield call.row({"grad_output": shard(dim)}, shard(dim), local="sizes")
    yield from pass_through(call, "grad_output", LINEAR)
