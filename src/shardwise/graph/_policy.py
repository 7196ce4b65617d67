"""Which operators a captured graph is made of: the one table that says what is taken apart, and why.

The joint graph is made of what reaches torch's dispatcher below autograd. Composite operators (linear, matmul,
cross entropy, LSTM) are taken apart on the way there by torch itself. Of what remains, those listed here are taken
apart further, because whole they cannot be sharded over a dim that matters; all others stay whole, because their
parts would move more memory than the kernel does and offer no further sharding that pays.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

aten = torch.ops.aten

# Taken apart by torch's own decomposition: operator, and what becomes possible.
TAKEN_APART: Mapping[str, str] = {
    "aten._log_softmax": "the classes (a vocabulary) can be sharded: maximum and sum of exponentials are partial",
    "aten._log_softmax_backward_data": "the classes can be sharded: the sum of the gradient is partial",
    "aten.nll_loss_forward": "the batch can be sharded: the sum and the count of its mean are partial separately",
    "aten.nll_loss_backward": "the batch can be sharded: the count it divides by is replicated",
    "aten.nll_loss2d_forward": "as nll_loss_forward",
    "aten.nll_loss2d_backward": "as nll_loss_backward",
    "aten.native_batch_norm_backward": "the batch can be sharded: its sums over the batch are partial",
}

# Taken apart by the functions below: operator, and what becomes possible.
TAKEN_APART_HERE: Mapping[str, str] = {
    "aten._native_batch_norm_legit_functional.default": "the batch can be sharded: mean and variance are partial sums",
    "aten._native_batch_norm_legit_no_training.default": "every dim can be sharded: it is elementwise",
    "aten._native_batch_norm_legit.no_stats": "as _native_batch_norm_legit_functional",
}

# Stay whole although torch could take them apart.
KEPT_WHOLE: Mapping[str, str] = {
    "aten._softmax": "one pass over memory; its dim is a whole row of attention or of a router",
    "aten.native_layer_norm": "one pass over memory; batch and positions can be sharded",
    "aten.native_group_norm": "one pass over memory; batch can be sharded",
    "aten.native_dropout": "its mask is drawn by the same call",
    "aten.addmm": "one kernel; its bias may be partial",
    "shardwise.attention": "one fused kernel; batch and heads can be sharded",
}

# Nothing happens: the node is replaced by its input.
IDENTITIES = {"aten.detach.default", "aten.alias.default", "aten.lift_fresh.default"}

# Checks of the values or metadata that were traced; they hold by construction and give nothing back.
DROPPED = {
    "aten._assert_tensor_metadata.default",
    "aten._assert_scalar.default",
    "aten._assert_async.msg",
    "aten._assert_async.default",
    "aten.sym_constrain_range_for_size.default",
    "aten.sym_constrain_range.default",
}


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    packets = [getattr(aten, name.removeprefix("aten.")) for name in TAKEN_APART]
    return {
        **get_decompositions(packets),
        aten._native_batch_norm_legit_functional.default: _batch_norm,
        aten._native_batch_norm_legit_no_training.default: _batch_norm_by_statistics,
        aten._native_batch_norm_legit.no_stats: _batch_norm_without_statistics,
    }


def _batch_norm(
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
        fixed = _batch_norm_by_statistics(x, weight, bias, running_mean, running_var, momentum, eps)
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


def _batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    return _normalised(x, weight, bias, eps)[:3]


def _batch_norm_by_statistics(
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
    """Two sums over the batch: `var_mean` would be one operator that cannot be sharded over it."""
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
