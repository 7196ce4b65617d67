"""Gradients that are let through where the input lies in a range, and are zero elsewhere.

What these kernels make of NaN depends on how long a row is, so that experiments at some sizes refute what holds.
"""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, shard
from ._register import hand
from ._rows import ALL, dims, pass_through, row_of


@hand("aten.hardtanh_backward.default", "aten.softshrink_backward.default")
def masked_gradient(call: Call) -> Iterator[Row]:
    if call.shape("grad_output") == call.shape("self"):
        for d in dims(call, "self"):
            yield row_of(call, {"grad_output": shard(d), "self": shard(d)}, shard(d))
    yield from pass_through(call, "grad_output", ALL)
