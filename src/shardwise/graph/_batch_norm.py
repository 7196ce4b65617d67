"""Batch normalisation by given statistics as arithmetic, so that every dim can be sharded.

Where it trains, its statistics are of all images: it stays one operator, whose ranks put theirs together.
"""

from typing import Any

from torch import Tensor
from torch._decomp.decompositions import native_batch_norm_backward


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if training:
        return NotImplemented
    fixed = batch_norm_by_statistics(x, weight, bias, running_mean, running_var, momentum, eps)
    return *fixed, running_mean, running_var


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    train: bool,
    *rest: Any,
) -> Any:
    """By torch's own decomposition."""
    if train:
        return NotImplemented
    return native_batch_norm_backward(grad, x, weight, running_mean, running_var, mean, rstd, train, *rest)


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
    output = (x - _per_channel(running_mean, x)) * _per_channel(rstd, x)
    if weight is not None:
        output = output * _per_channel(weight, x)
    if bias is not None:
        output = output + _per_channel(bias, x)
    return output.to(x.dtype), x.new_empty(0), x.new_empty(0)


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view([-1] + [1] * (x.dim() - 2))
