"""Fourier transforms: every dim that is not transformed is a batch.

They are linear. But what the transform of real numbers makes of an infinity depends on the order in which it adds, so
that the sum of transformed pieces is no number in other places than the transform of the sum.
"""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, shard
from ._register import hand
from ._rows import LINEAR, dims, pass_through, row_of


@hand("aten._fft_c2c.default", "aten._fft_c2r.default", "aten._fft_r2c.default")
def fourier(call: Call) -> Iterator[Row]:
    for dim in dims(call, "self"):
        if dim not in call["dim"]:
            yield row_of(call, {"self": shard(dim)}, shard(dim), "nonempty")
    if call["self"].dtype.is_complex:
        yield from pass_through(call, "self", LINEAR)
