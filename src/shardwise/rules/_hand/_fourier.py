"""Fourier transforms: they are linear, and every dim that is not transformed is a batch."""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, shard
from ._register import hand
from ._rows import LINEAR, dims, pass_through, row_of


@hand("aten._fft_c2c.default", "aten._fft_c2r.default", "aten._fft_r2c.default")
def fourier(call: Call) -> Iterator[Row]:
    if "last_dim_size" in call and call.shape("self")[call["dim"][-1]] != call["last_dim_size"] // 2 + 1:
        return  # the kernel takes more frequencies than it has room for, and writes behind them
    if min(call["dim"], default=0) < 0:
        return  # torch's functions count dims from the front: on others the kernel computes something else
    for dim in dims(call, "self"):
        if dim not in call["dim"]:
            yield row_of(call, {"self": shard(dim)}, shard(dim), "nonempty")
    yield from pass_through(call, "self", LINEAR)
