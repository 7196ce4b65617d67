"""Forms that communicate along the dim which is reduced, normalised or slid over."""

import pytest
import torch
from torch import Tensor

import shardwise as sw
from shardwise.calls import Call
from shardwise.experiments import refuted
from shardwise.forms import communicating
from shardwise.graph import rms_norm
from shardwise.placements import Row, shard
from shardwise.rules import own_rules, row_of, rows_besides

aten, own = torch.ops.aten, torch.ops.shardwise


def r(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


X, IMAGES, HALF = r(5, 9), r(2, 4, 11, 9), r(5, 9).bfloat16()
LAYER = torch.native_layer_norm(X, [9], r(9), r(9), 1e-5)
GROUPS = (2, 4, 99, 2)
GROUP = torch.native_group_norm(IMAGES, r(4), r(4), *GROUPS, 1e-5)


def rms() -> Tensor:
    return rms_norm(X, [9], r(9), 1e-5)[1]


REDUCTIONS = {
    "softmax": (aten._softmax.default, X, 1, False),
    "softmax in bfloat16": (aten._softmax.default, HALF, -1, False),
    "softmax backward": (aten._softmax_backward_data.default, r(5, 9), X.softmax(1), 1, torch.float64),
    "logsumexp": (aten.logsumexp.default, IMAGES, [1, -1], True),
    "max": (aten.max.dim, X, 1),
    "min": (aten.min.dim, IMAGES, -1, True),
    "argmax": (aten.argmax.default, X, 1),
    "argmin of integers": (aten.argmin.default, torch.randint(0, 5, (4, 7)), 1),
    "cumsum": (aten.cumsum.default, X, 1),
}
NORMS = {
    "layer": (aten.native_layer_norm.default, X, [9], r(9), r(9), 1e-5),
    "layer in bfloat16": (aten.native_layer_norm.default, HALF, [9], HALF[0], HALF[1], 1e-5),
    "layer in mixed precision": (aten.native_layer_norm.default, HALF, [9], r(9).float(), r(9).float(), 1e-5),
    "layer over two dims": (aten.native_layer_norm.default, IMAGES, [11, 9], None, None, 1e-5),
    "layer backward": (
        *(aten.native_layer_norm_backward.default, r(5, 9), X, [9], *LAYER[1:], r(9), r(9), [True] * 3),
    ),
    "rms": (own.rms_norm.default, X, [9], r(9), 1e-5),
    "rms backward": (own.rms_norm_backward.default, r(5, 9), X, [9], rms(), r(9)),
    "group": (aten.native_group_norm.default, IMAGES, r(4), r(4), *GROUPS, 1e-5),
    "group backward": (
        *(aten.native_group_norm_backward.default, r(*IMAGES.shape), IMAGES, *GROUP[1:], r(4)),
        *(*GROUPS, [True] * 3),
    ),
}


def convolved(weight: Tensor, bias: Tensor | None, stride=1, padding=0, dilation=1, transposed=False, more=0):
    """A convolution and its backward."""
    groups = 4 if weight.shape[1] == 1 else 1
    rest = ([stride] * 2, [padding] * 2, [dilation] * 2, transposed, [more] * 2, groups)
    made = aten.convolution.default(IMAGES, weight, bias, *rest)
    sizes = None if bias is None else [made.shape[1]]
    mask = [True, True, bias is not None]
    yield aten.convolution.default, IMAGES, weight, bias, *rest
    yield aten.convolution_backward.default, r(*made.shape), IMAGES, weight, sizes, *rest, mask


AVERAGED = ([3, 3], [2, 2], [1, 1], False, True, None)
WINDOWS = {
    "3 x 3": convolved(r(6, 4, 3, 3), r(6), padding=1),
    "3 x 3, every second": convolved(r(6, 4, 3, 3), r(6), stride=2, padding=1),
    "by channel": convolved(r(4, 1, 5, 5), None, padding=2),
    "patches": convolved(r(6, 4, 2, 2), r(6), stride=2),
    "dilated": convolved(r(6, 4, 3, 3), r(6), padding=2, dilation=2),
    "transposed": convolved(r(4, 6, 3, 3), r(6), stride=2, padding=1, transposed=True, more=1),
    "largest": [(aten.max_pool2d_with_indices.default, IMAGES, [3, 3], [2, 2], [1, 1], [1, 1], False)],
    "average": [
        (aten.avg_pool2d.default, IMAGES, *AVERAGED),
        (aten.avg_pool2d_backward.default, r(2, 4, 6, 5), IMAGES, *AVERAGED),
    ],
}
MIXED = (
    r(9, 5),
    torch.arange(18).view(9, 2) % 5,
    r(9, 2),
    r(5, 5, 2, 3),
    None,
    r(5, 3, 5),
    None,
    "silu_gated",
    5,
)
BIASED = (*MIXED[:4], r(5, 2, 3), MIXED[5], r(5, 5), *MIXED[7:])
EXPERTS = {
    "experts": (torch.ops.shardwise.experts.default, *MIXED),
    "experts backward": (torch.ops.shardwise.experts_backward.default, r(9, 5), *MIXED),
    "biased experts": (torch.ops.shardwise.experts.default, *BIASED),
    "biased experts backward": (torch.ops.shardwise.experts_backward.default, r(9, 5), *BIASED),
}
CALLS = {
    **REDUCTIONS,
    **NORMS,
    **EXPERTS,
    **{
        f"{name}{' backward' if number else ''}": call
        for name, calls in WINDOWS.items()
        for number, call in enumerate(calls)
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_every_row_holds_for_any_shards(name):
    op, *args = CALLS[name]
    call = Call.of(op, *args)
    rows = rows_besides(call)
    assert rows and all(row.shards == "any" for row in rows)
    assert not refuted(call, rows)
    assert sw.check(op, rows[0], *args)


def test_a_halo_that_is_too_narrow_is_refuted():
    def rows(call: Call):
        yield row_of(call, {"input": shard(2)}, shard(2))

    with own_rules():

        @communicating("aten.convolution.default", rows=rows)
        def one_side(call, group):
            """Fetches the last row of the piece before, but not the first of the next."""
            x = call["input"]
            edge = yield group.permute(x[:, :, -1:])
            edge = edge if group.rank else torch.zeros_like(edge)
            return call(input=torch.cat([edge, x], 2), padding=[0, 1], weight=call["weight"][:, :, :2])

        weight = r(6, 4, 3, 3)
        given = (r(2, 4, 8, 6), weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        verdict = sw.check(aten.convolution.default, Row.parse("S(2), R -> S(2) with local one_side"), *given)
        assert not verdict and "values differ" in str(verdict)


def test_pooling_that_counts_what_is_inside_has_no_such_row():
    inside = ([3, 3], [2, 2], [1, 1], False, False, None)
    assert not rows_besides(Call.of(aten.avg_pool2d.default, IMAGES, *inside))
    rounded_up = ([3, 3], [2, 2], [1, 1], True, True, None)
    assert not rows_besides(Call.of(aten.avg_pool2d.default, IMAGES, *rounded_up))
