"""Gradients that are let through where the input lies in a range, and are zero elsewhere.

What these kernels make of NaN depends on how long a row is, so that experiments at some sizes refute what holds.
"""

from collections.abc import Iterator

from ...placements import Row, shard
from ..hand._call import ALL, HandCall, pass_through
from ..hand._register import hand


@hand("aten.hardtanh_backward.default", "aten.softshrink_backward.default")
def masked_gradient(call: HandCall) -> Iterator[Row]:
    if call.shape("grad_output") == call.shape("self"):
        for d in call.dims("self"):
            yield call.row({"grad_output": shard(d), "self": shard(d)}, shard(d))
    yield from pass_through(call, "grad_output", ALL)
