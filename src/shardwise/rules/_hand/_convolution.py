"""Convolution: a sum over input channels and window positions, for every image and output channel."""

from collections.abc import Iterator
from math import gcd

from torch.distributed.tensor.placement_types import Placement

from ...calls import Call
from ...placements import Row, partial, partials_of, shard
from ._register import hand
from ._rows import LINEAR, R, row_of

_SUM = partial("sum")


class _Sizes:
    """The parts of a call that decide how it shards; a transposed convolution has its weight's channels swapped."""

    def __init__(self, call: Call, output: tuple[int, ...]) -> None:
        self.input, self.weight = call.shape("input"), call.shape("weight")
        self.output = output
        self.groups = call["groups"]
        self.made, self.read = (1, 0) if call["transposed"] else (0, 1)
        # What divides the channels on both sides then divides the groups: even shards cut between groups.
        self.cut_between_groups = self.groups > 1 and gcd(self.input[1], self.output[1]) == self.groups
        self.windows = self._separate_windows(call)

    def _separate_windows(self, call: Call) -> list[int]:
        """Dims along which windows neither overlap nor leave gaps, so that even shards cut between them."""
        dims = []
        for i, kernel in enumerate(self.weight[2:]):
            stride, padding, dilation, extra = (
                _number(call[name], i) for name in ("stride", "padding", "dilation", "output_padding")
            )
            small, large = sorted((self.input[2 + i], self.output[2 + i]))
            fits = kernel == stride and large == small * stride and small > 1
            if fits and not padding and not extra and (dilation == 1 or kernel == 1):
                dims.append(2 + i)
        return dims


def _number(value: list[int], i: int) -> int:
    return value[i] if len(value) > 1 else value[0]


@hand("aten.convolution.default")
def convolution(call: Call) -> Iterator[Row]:
    sizes = _Sizes(call, call.output)
    if sizes.input[0] > 1:
        yield row_of(call, {"input": shard(0)}, shard(0))
    if sizes.cut_between_groups:
        row = {"input": shard(1), "weight": shard(0), "bias": shard(0)}
        yield row_of(call, row, shard(1), "even", local="groups")
    elif sizes.groups == 1:
        if sizes.output[1] > 1:
            row = {"weight": shard(sizes.made), "bias": shard(0)}
            yield row_of(call, row, shard(1), "nonempty")
        if sizes.input[1] > 1:
            row = {"input": shard(1), "weight": shard(sizes.read), "bias": _SUM}
            yield row_of(call, row, _SUM, "nonempty")
    for dim in sizes.windows:
        same = sizes.input[dim] == sizes.output[dim]
        yield row_of(call, {"input": shard(dim)}, shard(dim), "nonempty" if same else "even")
    for p in partials_of(call["input"].dtype, LINEAR):
        yield row_of(call, {"input": p, "bias": p}, p)
        yield row_of(call, {"weight": p, "bias": p}, p)
    if call.has("bias"):
        for p in partials_of(call["input"].dtype, ("max", "min")):
            yield row_of(call, {"bias": p}, p)


@hand("aten.convolution_backward.default")
def convolution_backward(call: Call) -> Iterator[Row]:
    """Gradients of input, weight and bias: each is linear in what it is made of."""
    sizes = _Sizes(call, call.shape("grad_output"))
    grad = "grad_output"
    if sizes.input[0] > 1:
        yield row_of(call, {grad: shard(0), "input": shard(0)}, [shard(0), _SUM, _SUM], "nonempty")
    made, read = shard(sizes.made), shard(sizes.read)
    if sizes.cut_between_groups:
        row: dict[str, Placement] = {grad: shard(1), "input": shard(1), "weight": shard(0)}
        yield row_of(call, row, [shard(1), shard(0), shard(0)], "even", local="groups")
    elif sizes.groups == 1:
        if sizes.output[1] > 1:
            yield row_of(
                call, {grad: shard(1), "weight": made}, [_SUM, made, shard(0)], "nonempty", local="groups"
            )
        if sizes.input[1] > 1:
            yield row_of(call, {"input": shard(1), "weight": read}, [shard(1), read, R], "nonempty")
    for dim in sizes.windows:
        same = sizes.input[dim] == sizes.output[dim]
        row = {grad: shard(dim), "input": shard(dim)}
        yield row_of(call, row, [shard(dim), _SUM, _SUM], "nonempty" if same else "even")
    partials = partials_of(call["input"].dtype, LINEAR)
    for p in partials:
        yield row_of(call, {grad: p}, p)
        yield row_of(call, {"input": p}, [R, p, R])
        yield row_of(call, {"weight": p}, [p, R, R])
        for other in partials:
            yield row_of(call, {"input": p, "weight": other}, [other, p, R])
