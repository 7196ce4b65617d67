"""Convolution: a sum over input channels and window positions, for every image and output channel."""

from collections.abc import Iterator
from math import gcd

from torch.distributed.tensor.placement_types import Placement

from ...placements import Row, partial, shard
from ..hand._call import LINEAR, HandCall, R
from ..hand._register import hand

_SUM = partial("sum")


class _Sizes:
    """The parts of a call that decide how it shards; a transposed convolution has its weight's channels swapped."""

    def __init__(self, call: HandCall, output: tuple[int, ...]) -> None:
        self.input, self.weight = call.shape("input"), call.shape("weight")
        self.output = output
        self.groups = call["groups"]
        self.made, self.read = (1, 0) if call["transposed"] else (0, 1)
        # What divides the channels on both sides then divides the groups: even shards cut between groups.
        self.cut_between_groups = self.groups > 1 and gcd(self.input[1], self.output[1]) == self.groups
        self.windows = self._separate_windows(call)

    def _separate_windows(self, call: HandCall) -> list[int]:
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
def convolution(call: HandCall) -> Iterator[Row]:
    sizes = _Sizes(call, call.output)
    if sizes.input[0] > 1:
        yield call.row({"input": shard(0)}, shard(0))
    if sizes.cut_between_groups:
        row = {"input": shard(1), "weight": shard(0), "bias": shard(0)}
        yield call.row(row, shard(1), "even", local="groups")
    elif sizes.groups == 1:
        if sizes.output[1] > 1:
            row = {"weight": shard(sizes.made), "bias": shard(0)}
            yield call.row(row, shard(1), "nonempty")
        if sizes.input[1] > 1:
            row = {"input": shard(1), "weight": shard(sizes.read), "bias": _SUM}
            yield call.row(row, _SUM, "nonempty")
    for dim in sizes.windows:
        same = sizes.input[dim] == sizes.output[dim]
        yield call.row({"input": shard(dim)}, shard(dim), "nonempty" if same else "even")
    for p in call.partials("input", LINEAR):
        yield call.row({"input": p, "bias": p}, p)
        yield call.row({"weight": p, "bias": p}, p)
    if call.has("bias"):
        for p in call.partials("input", ("max", "min")):
            yield call.row({"bias": p}, p)


@hand("aten.convolution_backward.default")
def convolution_backward(call: HandCall) -> Iterator[Row]:
    """Gradients of input, weight and bias: each is linear in what it is made of."""
    sizes = _Sizes(call, call.shape("grad_output"))
    grad = "grad_output"
    if sizes.input[0] > 1:
        yield call.row({grad: shard(0), "input": shard(0)}, [shard(0), _SUM, _SUM], "nonempty")
    made, read = shard(sizes.made), shard(sizes.read)
    if sizes.cut_between_groups:
        row: dict[str, Placement] = {grad: shard(1), "input": shard(1), "weight": shard(0)}
        yield call.row(row, [shard(1), shard(0), shard(0)], "even", local="groups")
    elif sizes.groups == 1:
        if sizes.output[1] > 1:
            yield call.row(
                {grad: shard(1), "weight": made}, [_SUM, made, shard(0)], "nonempty", local="groups"
            )
        if sizes.input[1] > 1:
            yield call.row({"input": shard(1), "weight": read}, [shard(1), read, R], "nonempty")
    for dim in sizes.windows:
        same = sizes.input[dim] == sizes.output[dim]
        row = {grad: shard(dim), "input": shard(dim)}
        yield call.row(row, [shard(dim), _SUM, _SUM], "nonempty" if same else "even")
    partials = call.partials("input", LINEAR)
    for p in partials:
        yield call.row({grad: p}, p)
        yield call.row({"input": p}, [R, p, R])
        yield call.row({"weight": p}, [p, R, R])
        for other in partials:
            yield call.row({"input": p, "weight": other}, [other, p, R])
