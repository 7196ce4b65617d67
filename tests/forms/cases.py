"""Calls of every operator that has rows whose ranks communicate, at sizes that no number of ranks divides.

`CALLS` is what `test_every_row.py` takes, and tests/running/test_ranks.py on real ranks.
"""

import torch
from torch import Tensor

from shardwise.calls import Call
from shardwise.graph import attention, rms_norm

aten, own = torch.ops.aten, torch.ops.shardwise


def r(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


VOLUMES = r(2, 3, 9, 6, 7)
X, IMAGES, HALF = r(5, 9), r(2, 4, 11, 9), r(5, 9).bfloat16()
LAYER = torch.native_layer_norm(X, [9], r(9), r(9), 1e-5)
GROUPS = (2, 4, 99, 2)
GROUP = torch.native_group_norm(IMAGES, r(4), r(4), *GROUPS, 1e-5)
TRAINED = (True, 0.1, 1e-5)
BATCH = aten._native_batch_norm_legit.no_stats(IMAGES, None, None, *TRAINED)


def rms() -> Tensor:
    return rms_norm(X, [9], r(9), 1e-5)[1]


REDUCTIONS = {
    "softmax": (aten._softmax.default, X, 1, False),
    "softmax in bfloat16": (aten._softmax.default, HALF, -1, False),
    "softmax backward": (aten._softmax_backward_data.default, r(5, 9), X.softmax(1), 1, torch.float64),
    "log_softmax": (aten._log_softmax.default, X, 1, False),
    "log_softmax in bfloat16": (aten._log_softmax.default, HALF, -1, False),
    "log_softmax backward": (
        *(aten._log_softmax_backward_data.default, r(5, 9), X.log_softmax(1), 1, torch.float64),
    ),
    "topk": (aten.topk.default, X, 3),
    "smallest": (aten.topk.default, IMAGES, 5, -2, False),
    "logsumexp": (aten.logsumexp.default, IMAGES, [1, -1], True),
    "max": (aten.max.dim, X, 1),
    "min": (aten.min.dim, IMAGES, -1, True),
    "argmax": (aten.argmax.default, X, 1),
    "argmin of integers": (aten.argmin.default, r(4, 7).mul(3).long(), 1),
    "cumsum": (aten.cumsum.default, X, 1),
    "cumsum of integers": (aten.cumsum.default, r(4, 7).mul(3).int(), -1),
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
    "batch": (
        aten._native_batch_norm_legit_functional.default,
        IMAGES,
        r(4),
        r(4),
        r(4),
        r(4).exp(),
        *TRAINED,
    ),
    "batch of one kind of number": (aten._native_batch_norm_legit.no_stats, X, None, r(9), *TRAINED),
    "batch in bfloat16": (
        *(aten._native_batch_norm_legit_functional.default, HALF, r(9).float(), r(9).float()),
        *(r(9).float(), r(9).float().exp(), *TRAINED),
    ),
    "batch backward": (
        *(aten.native_batch_norm_backward.default, r(*IMAGES.shape), IMAGES, r(4), None, None, *BATCH[1:3]),
        *(True, 1e-5, [True] * 3),
    ),
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


def pooled(*windows):
    """The largest elements of windows, and their backward."""
    n = len(windows[0])
    forward, back = (getattr(aten, f"max_pool{n}d_with_indices{way}").default for way in ("", "_backward"))
    x = IMAGES if n == 2 else VOLUMES
    rest = windows if len(windows) > 4 else (*windows, False)
    made, places = forward(x, *rest)
    yield forward, x, *rest
    yield back, r(*made.shape), x, *rest, places


def averaged(*rest):
    """The means of windows, and their backward."""
    n = len(rest[0])
    forward, back = (getattr(aten, f"avg_pool{n}d{way}").default for way in ("", "_backward"))
    x = IMAGES if n == 2 else VOLUMES
    yield forward, x, *rest
    yield back, r(*forward(x, *rest).shape), x, *rest


WINDOWS = {
    "3 x 3": convolved(r(6, 4, 3, 3), r(6), padding=1),
    "3 x 3, every second": convolved(r(6, 4, 3, 3), r(6), stride=2, padding=1),
    "by channel": convolved(r(4, 1, 5, 5), None, padding=2),
    "patches": convolved(r(6, 4, 2, 2), r(6), stride=2),
    "dilated": convolved(r(6, 4, 3, 3), r(6), padding=2, dilation=2),
    "transposed": convolved(r(4, 6, 3, 3), r(6), stride=2, padding=1, transposed=True, more=1),
    "largest": pooled([3, 3], [2, 2], [1, 1], [1, 1]),
    "largest, dilated": pooled([3, 2], [1, 2], [1, 0], [2, 1]),
    "largest, rounded up": pooled([3, 2], [2, 2], [1, 0], [1, 1], True),
    "largest in volumes": pooled([3, 2, 2], [2, 2, 1], [1, 0, 1], [1, 1, 1]),
    "average": averaged([3, 3], [2, 2], [1, 1], False, True, None),
    "average of what is inside": averaged([3, 3], [2, 2], [1, 1], False, False, None),
    "average, rounded up": averaged([3, 2], [2, 2], [1, 1], True, True, None),
    "average of what is inside, rounded up": averaged([3, 3], [2, 2], [1, 1], True, False, None),
    "average by a given number": averaged([3, 3], [2, 2], [1, 1], True, False, 7),
    "average in volumes": averaged([3, 3, 2], [2, 2, 2], [1, 1, 0], True, False, None),
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
CHOSEN = torch.arange(15).view(3, 5) * 7 % 9
LOSSES = {
    f"cross entropy of a layer{name}": (
        own.linear_cross_entropy.default,
        r(3, 5, 4),
        r(9, 4),
        CHOSEN,
        2,
        *wanted,
    )
    for name, wanted in {
        "": (True, True),
        ", frozen": (True, False),
        " of data": (False, True),
        ", no gradient": (False,) * 2,
    }.items()
}
LAYERS = {
    "linear layer": (own.linear.default, r(3, 9, 7), r(5, 7)),
    "linear layer of matrices": (own.linear.default, r(9, 7), r(5, 7)),
    "linear layer in bfloat16": (own.linear.default, r(2, 3, 5, 7).bfloat16(), r(5, 7).bfloat16()),
    "gradient of a weight": (own.linear_weight.default, r(3, 9, 5), r(3, 9, 7)),
}
QUERY, KEY, VALUE = r(2, 4, 9, 6), r(2, 2, 9, 6), r(2, 2, 9, 5)
MASK = torch.rand(9, 9, generator=torch.Generator().manual_seed(1)) < 0.7


def attended(mask: Tensor | None, causal: bool, query: Tensor = QUERY):
    """Attention and its backward."""
    rest = (mask, None, causal, 0.4, 0.0)
    made = attention(query, KEY, VALUE, *rest)
    yield own.attention.default, query, KEY, VALUE, *rest
    yield own.attention_backward.default, r(*made[0].shape), query, KEY, VALUE, *made, *rest


ATTENTION = {
    "attention": attended(None, False, QUERY[:, :2]),
    "grouped attention": attended(None, False),
    "causal attention": attended(None, True, QUERY[:, :2]),
    "causal grouped attention": attended(None, True),
    "masked attention": attended(MASK, False),
}
BOTH_WAYS = {
    f"{name}{' backward' if number else ''}": call
    for name, calls in {**WINDOWS, **ATTENTION}.items()
    for number, call in enumerate(calls)
}
_KINDS = (REDUCTIONS, NORMS, EXPERTS, LOSSES, LAYERS, BOTH_WAYS)
CALLS = {name: call for calls in _KINDS for name, call in calls.items()}
assert len(CALLS) == sum(map(len, _KINDS)), "no name is that of two calls"


def call_of(name: str) -> Call:
    op, *args = CALLS[name]
    return Call.of(op, *args)
