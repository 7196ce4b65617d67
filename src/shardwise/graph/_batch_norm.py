"""Batch normalisation as two sums over the batch, so that the batch can be sharded with exact statistics.

torch's own decomposition uses `var_mean`, one operator whose variance is not a sum over shards; here the
mean is a sum, and the variance a sum of squares around that mean.
"""

import torch
from torch import Tensor


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    if not training:
        fixed = batch_norm_by_statistics(x, weight, bias, running_mean, running_var, momentum, eps)
        return *fixed, running_mean, running_var
    output, mean, rstd, variance = _normalised(x, weight, bias, eps)
    count = x.numel() // x.shape[1]
    unbiased = variance * (count / max(count - 1, 1))
    return (
        output,
        mean,
        rstd,
        running_mean * (1 - momentum) + mean.to(running_mean.dtype) * momentum,
        running_var * (1 - momentum) + unbiased.to(running_var.dtype) * momentum,
    )


def batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    return _normalised(x, weight, bias, eps)[:3]


def batch_norm_by_statistics(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    rstd = (running_var + eps).rsqrt()
    output = _scaled((x - _per_channel(running_mean, x)) * _per_channel(rstd, x), weight, bias)
    return output.to(x.dtype), x.new_empty(0), x.new_empty(0)


def _normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    dims = [dim for dim in range(x.dim()) if dim != 1]
    count = x.numel() // x.shape[1]
    mean = wide.sum(dims) / count
    centred = wide - _per_channel(mean, x)
    variance = (centred * centred).sum(dims) / count
    rstd = (variance + eps).rsqrt()
    output = _scaled(centred * _per_channel(rstd, x), weight, bias)
    return output.to(x.dtype), mean, rstd, variance


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = x * _per_channel(weight, x)
    return x if bias is None else x + _per_channel(bias, x)


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view([-1] + [1] * (x.dim() - 2))
