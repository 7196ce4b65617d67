"""Tensors made from nothing: every rank makes its piece. Zeros are the sum of zeros."""

from collections.abc import Iterator

import torch
from torch.distributed.tensor.placement_types import Placement

from ...calls import Call
from ...placements import Row, partials_of, shard
from ._register import hand
from ._rows import ALL, R, dims, pass_through, row_of, sharded_dims


def _made(call: Call, zero: bool) -> Iterator[tuple[Placement, str | None]]:
    """Placements of what is made, each with the form it needs."""
    for dim in sharded_dims(call.output):
        yield shard(dim), "sizes"
    dtype = call["dtype"] or (call["self"].dtype if call.has("self") else torch.get_default_dtype())
    yield from ((p, None) for p in partials_of(dtype, ("sum",)) if zero)


@hand("aten.full.default")
def full(call: Call) -> Iterator[Row]:
    value = call["fill_value"]
    is_bool = isinstance(value, bool) and call["dtype"] is None
    for placement, local in _made(call, value == 0 and not is_bool):
        yield row_of(call, {}, placement, local=local)


@hand("aten.zeros.default")
def zeros(call: Call) -> Iterator[Row]:
    for placement, local in _made(call, zero=True):
        yield row_of(call, {}, placement, local=local)


@hand("aten.ones.default", "aten.empty.memory_format", "aten.empty_strided.default")
def ones(call: Call) -> Iterator[Row]:
    for placement, local in _made(call, zero=False):
        yield row_of(call, {}, placement, local=local)


@hand("aten.scalar_tensor.default")
def scalar_tensor(call: Call) -> Iterator[Row]:
    for placement, local in _made(call, call["s"] == 0):
        yield row_of(call, {}, placement, local=local)


@hand("aten.new_zeros.default")
def new_zeros(call: Call) -> Iterator[Row]:
    yield from _new(call, zero=True)


@hand("aten.new_full.default")
def new_full(call: Call) -> Iterator[Row]:
    yield from _new(call, call["fill_value"] == 0)


@hand("aten.new_ones.default", "aten.new_empty.default", "aten.new_empty_strided.default")
def new(call: Call) -> Iterator[Row]:
    yield from _new(call, zero=False)


def _new(call: Call, zero: bool) -> Iterator[Row]:
    """The tensor it is called on gives a dtype and a device only, so that one may be placed in any way."""
    given = [R, *(shard(dim) for dim in dims(call, "self")), *partials_of(call["self"].dtype, ("sum",))]
    made = [(R, None), *_made(call, zero)]
    for like in given:
        for placement, local in made:
            yield row_of(call, {"self": like}, placement, local=local)


@hand(
    "aten.arange.default",
    "aten.arange.start",
    "aten.arange.start_step",
    "aten.linspace.default",
    "aten.eye.default",
    "aten.eye.m",
    "aten.tril_indices.default",
    "aten.triu_indices.default",
)
def positions(call: Call) -> Iterator[Row]:
    for dim in sharded_dims(call.output):
        yield row_of(call, {}, shard(dim), local="offset")


@hand("aten.tril.default", "aten.triu.default")
def triangle(call: Call) -> Iterator[Row]:
    ndim = len(call.output)
    for dim in dims(call, "self"):
        yield row_of(call, {"self": shard(dim)}, shard(dim), local="offset" if dim >= ndim - 2 else None)
    yield from pass_through(call, "self", ALL)
