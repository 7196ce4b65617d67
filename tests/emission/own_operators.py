"""Operators as people write them, of many kinds, each with a call to start from."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, rand, randn

CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {}


def op(call: Callable[[], tuple[Any, ...]]) -> Callable[[Callable[..., Tensor]], None]:
    """Register a function as an operator, and a call of it."""

    def register(function: Callable[..., Tensor]) -> None:
        name = function.__name__
        torch.library.custom_op(f"own::{name}", function, mutates_args=()).register_fake(function)
        CALLS[name] = call

    return register


@op(lambda: (randn(4, 6, 8), randn(8), 1e-6))
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@op(lambda: (randn(4, 8, 6), 2))
def group_rms(x: Tensor, groups: int) -> Tensor:
    n, c = x.shape[:2]
    y = x.reshape(n, groups, c // groups, -1)
    y = y * torch.rsqrt(y.pow(2).mean((2, 3), keepdim=True) + 1e-6)
    return y.reshape(x.shape)


@op(lambda: (randn(2, 4, 6, 8), randn(6, 4), randn(6, 4)))
def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@op(lambda: (randn(4, 6), randn(6, 8), randn(6, 8), randn(8, 6)))
def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (F.silu(x @ gate) * (x @ up)) @ down


@op(lambda: (randn(6, 8), 2))
def topk_gate(logits: Tensor, k: int) -> Tensor:
    values, index = logits.topk(k, -1)
    return torch.zeros_like(logits).scatter(-1, index, values.softmax(-1))


@op(lambda: (randn(4, 6, 8), 0, 8))
def fake_quantize(x: Tensor, dim: int, bits: int) -> Tensor:
    dims = [d for d in range(x.ndim) if d != dim % x.ndim]
    largest = x.abs().amax(dims, keepdim=True) if dims else x.abs()
    scale = largest / (2 ** (bits - 1) - 1)
    return torch.round(x / scale.clamp_min(1e-8)) * scale


@op(lambda: (randn(2, 6, 8), randn(6, 3)))
def causal_conv(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv1d(F.pad(x, (weight.shape[1] - 1, 0)), weight.unsqueeze(1), groups=x.shape[1])


@op(lambda: (randn(6, 4), torch.randint(0, 3, (6,)), 3))
def segment_sum(x: Tensor, ids: Tensor, segments: int) -> Tensor:
    return x.new_zeros(segments, *x.shape[1:]).index_add(0, ids, x)


@op(lambda: (randn(4, 6, 3), randn(4, 5, 3)))
def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    return (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)


@op(lambda: (randn(2, 6, 4), randn(2, 6, 4)))
def linear_scan(a: Tensor, b: Tensor) -> Tensor:
    state, out = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        state = torch.sigmoid(a[:, t]) * state + b[:, t]
        out.append(state)
    return torch.stack(out, 1)


@op(lambda: (randn(6, 4), rand(6, 4), 2.0, "mean"))
def focal_loss(logits: Tensor, target: Tensor, gamma: float, reduction: str) -> Tensor:
    p = torch.sigmoid(logits)
    loss = (target - p).abs().pow(gamma) * F.binary_cross_entropy_with_logits(
        logits, target, reduction="none"
    )
    if reduction == "mean":
        return loss.mean()
    return loss.sum() if reduction == "sum" else loss.clone()


@op(lambda: (randn(4, 6, 8), randn(4, 6, 8), 1, False))
def softmax_weighted(x: Tensor, s: Tensor, dim: int, divide: bool) -> Tensor:
    w = s.softmax(dim)
    return x / w if divide else x * w


@op(lambda: (randn(4, 6, 8), rand(4, 6) > 0.5))
def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    m = mask.to(x.dtype).unsqueeze(-1)
    return (x * m).sum(1) / m.sum(1).clamp_min(1)


@op(lambda: (randn(4, 6), randn(5, 6, 7), randn(4, 7)))
def bilinear_scores(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    return torch.einsum("bi,kij,bj->bk", x, weight, y)


@op(lambda: (randn(2, 6, 4), 0.5))
def token_shift(x: Tensor, mix: float) -> Tensor:
    return x * mix + F.pad(x, (0, 0, 1, -1)) * (1 - mix)


@op(lambda: (randn(2, 4, 6, 6), True))
def alibi(scores: Tensor, causal: bool) -> Tensor:
    h, q, k = scores.shape[-3:]
    slopes = 2.0 ** -torch.arange(1, h + 1, dtype=scores.dtype, device=scores.device)
    distance = torch.arange(k, device=scores.device) - torch.arange(q, device=scores.device).unsqueeze(1)
    bias = slopes.view(-1, 1, 1) * distance.to(scores.dtype)
    return scores + (bias.masked_fill(distance > 0, -1e9) if causal else bias)


@op(lambda: (randn(4, 6, 8), 1, False))
def normalize(x: Tensor, dim: int, only_norm: bool) -> Tensor:
    n = x.norm(dim=dim, keepdim=True)
    return n.expand_as(x).clone() if only_norm else x / n.clamp_min(1e-6)


@op(lambda: (randn(6, 8), torch.randint(0, 8, (6,)), 0.1))
def smoothed_cross_entropy(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    logp = logits.log_softmax(-1)
    nll = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return ((1 - smoothing) * nll - smoothing * logp.mean(-1)).mean()


@op(lambda: (randn(6, 8), None))
def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    return x.clone() if cap is None else cap * torch.tanh(x / cap)


@op(lambda: (randn(4, 6, 8), 2))
def heads_split_norm(x: Tensor, heads: int) -> Tensor:
    y = x.unflatten(-1, (heads, -1))
    return (y / y.norm(dim=-1, keepdim=True).clamp_min(1e-6)).flatten(-2)


@op(lambda: (randn(4, 6, 8), "zero"))
def edge_pad(x: Tensor, how: str) -> Tensor:
    return F.pad(x, (1, 1)) if how == "zero" else F.pad(x, (1, 1), mode="replicate")
