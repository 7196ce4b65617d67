"""Gradients that depend on where the input lies: let through in a range and zero elsewhere, or scaled by two laws.

What these kernels make of NaN depends on how long a row is, so that experiments at some sizes refute what holds.
"""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, shard
from ._register import hand
from ._rows import ALL, LINEAR, dims, pass_through, row_of


@hand("aten.hardtanh_backward.default", "aten.softshrink_backward.default")
def masked_gradient(call: Call) -> Iterator[Row]:
    if call.shape("grad_output") == call.shape("self"):
        for d in dims(call, "self"):
            yield row_of(call, {"grad_output": shard(d), "self": shard(d)}, shard(d))
    yield from pass_through(call, "grad_output", ALL)


@hand("aten.elu_backward.default")
def elu_backward(call: Call) -> Iterator[Row]:
    if call.shape("grad_output") == call.shape("self_or_result"):
        for d in dims(call, "grad_output"):
            yield row_of(call, {"grad_output": shard(d), "self_or_result": shard(d)}, shard(d))
    falls = min(call["scale"], call["alpha"] * call["scale"] * call["input_scale"]) < 0
    yield from pass_through(call, "grad_output", LINEAR if falls or call["is_result"] else ALL)
