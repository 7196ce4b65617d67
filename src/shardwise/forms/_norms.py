"""Communicating forms of norms whose dims are sharded: the statistics of all pieces are put together.

The mean of a piece and its squared deviations from it are gathered in one small exchange, and combined without
cancellation (Chan's formula). Backward needs two sums of products, reduced over the ranks together.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..calls import Call
from ._group import Group, Run
from ._operator import Operator

aten = torch.ops.aten


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _statistics(x: Tensor, dims: list[int], counts: Sequence[int], group: Group) -> Run:
    """The mean and the variance along dims of which each rank has so many elements."""
    if counts[group.rank]:
        variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
        squares = variance * counts[group.rank]
    else:
        mean = squares = x.sum(dims, keepdim=True)
    found = yield group.all_gather(torch.stack([mean, squares]).unsqueeze(0))
    means, sums = found.unbind(1)
    weights = [count / sum(counts) for count in counts]
    weight = x.new_tensor(weights).view(-1, *[1] * x.dim())
    mean = (means * weight).sum(0)
    apart = ((means - mean).square() * weight).sum(0)
    return mean, sums.sum(0) / sum(counts) + apart


def _inner(call: Call) -> list[int]:
    """The dims that are normalised, counted from the end."""
    return list(range(-len(call["normalized_shape"]), 0))


def _counts(group: Group, name: str, dims: Sequence[int]) -> list[int]:
    return [math.prod(held[name].local[dim] for dim in dims) for held in group.held]


def _layer_norm(call: Call, group: Group) -> Run:
    x, dims = _wide(call["input"]), _inner(call)
    mean, variance = yield from _statistics(x, dims, _counts(group, "input", dims), group)
    rstd = (variance + call["eps"]).rsqrt()
    output = _affine((x - mean) * rstd, call["weight"], call["bias"])
    one = torch.native_layer_norm(call["input"].new_empty(1, 1), [1], None, None, 1.0)[1]
    kept = _kept_dtype(call, one)
    return output.to(call["input"].dtype), mean.to(kept), rstd.to(kept)


def _kept_dtype(call: Call, plain: Tensor) -> torch.dtype:
    """The dtype of statistics: that of a call without weights on the device, or that of weights in another."""
    weight, given = call["weight"], call["input"].dtype
    return plain.dtype if weight is None or weight.dtype == given else weight.dtype


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _layer_norm_backward(call: Call, group: Group) -> Run:
    x, grad, dims = _wide(call["input"]), _wide(call["grad_out"]), _inner(call)
    normed = (x - call["mean"]) * call["rstd"]
    weighted = grad if call["weight"] is None else grad * call["weight"]
    means = yield from _means(weighted, normed, dims, _counts(group, "input", dims), group)
    of_input = ((weighted - means[0] - normed * means[1]) * call["rstd"]).to(call["input"].dtype)
    outer = list(range(x.dim() - len(dims)))
    of_weight, of_bias = (t.sum(outer) if outer else t for t in (grad * normed, grad))
    dtype = call["input"].dtype if call["weight"] is None else call["weight"].dtype
    wanted = call["output_mask"]
    results = (of_input, of_weight.to(dtype), of_bias.to(dtype))
    return tuple(made if keep else None for made, keep in zip(results, wanted, strict=True))


def _means(weighted: Tensor, normed: Tensor, dims: list[int], counts: Sequence[int], group: Group) -> Run:
    """The means of a gradient and of its product with what was normalised, over all ranks."""
    own = torch.stack([t.sum(dims, keepdim=True) for t in (weighted, weighted * normed)])
    return ((yield group.all_reduce(own)) / sum(counts)).unbind()


def _rms_norm(call: Call, group: Group) -> Run:
    x, dims = _wide(call["input"]), _inner(call)
    total = yield group.all_reduce(x.square().sum(dims, keepdim=True))
    rstd = (total / sum(_counts(group, "input", dims)) + call["eps"]).rsqrt()
    return (x * rstd * call["weight"]).to(call["input"].dtype), rstd


def _rms_norm_backward(call: Call, group: Group) -> Run:
    x, grad, dims = _wide(call["input"]), _wide(call["grad_out"]), _inner(call)
    normed, weighted = x * call["rstd"], grad * call["weight"]
    total = yield group.all_reduce((weighted * normed).sum(dims, keepdim=True))
    row = total / sum(_counts(group, "input", dims))
    of_input = ((weighted - normed * row) * call["rstd"]).to(call["input"].dtype)
    outer = list(range(x.dim() - len(dims)))
    of_weight = (grad * normed).sum(outer) if outer else grad * normed
    return of_input, of_weight.to(call["weight"].dtype)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """Images, groups, and the channels and places of a group."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)


def _by_channel(weight: Tensor | None, groups: int) -> Tensor | None:
    return None if weight is None else weight.reshape(1, groups, -1, 1)


def _group_norm(call: Call, group: Group) -> Run:
    """The places of images are sharded."""
    given, groups = call["input"], call["group"]
    x = _grouped(_wide(given), groups)
    counts = [call["C"] // groups * math.prod(held["input"].local[2:]) for held in group.held]
    mean, variance = yield from _statistics(x, [2, 3], counts, group)
    rstd = (variance + call["eps"]).rsqrt()
    weight, bias = (_by_channel(call[name], groups) for name in ("weight", "bias"))
    output = _affine((x - mean) * rstd, weight, bias).reshape(given.shape).to(given.dtype)
    one = torch.native_group_norm(given.new_empty(1, 1, 1), None, None, 1, 1, 1, 1, 1.0)[1]
    return output, *(t.flatten(1).to(_kept_dtype(call, one)) for t in (mean, rstd))


def _group_norm_backward(call: Call, group: Group) -> Run:
    given, groups = call["input"], call["group"]
    x, grad = _grouped(_wide(given), groups), _grouped(_wide(call["grad_out"]), groups)
    mean, rstd = (call[name].unflatten(1, (groups, 1, 1)) for name in ("mean", "rstd"))
    weight = _by_channel(call["weight"], groups)
    normed, weighted = (x - mean) * rstd, grad if weight is None else grad * weight
    counts = [call["C"] // groups * math.prod(held["input"].local[2:]) for held in group.held]
    means = yield from _means(weighted, normed, [2, 3], counts, group)
    of_input = ((weighted - means[0] - normed * means[1]) * rstd).reshape(given.shape).to(given.dtype)
    of_weight, of_bias = (t.sum((0, 3)).flatten().to(given.dtype) for t in (grad * normed, grad))
    wanted = call["output_mask"]
    results = (of_input, of_weight, of_bias)
    return tuple(made if keep else None for made, keep in zip(results, wanted, strict=True))


def _but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _wide_or_none(call: Call, name: str) -> Tensor | None:
    return _wide(call[name]) if name in call and call.has(name) else None


def _batch_norm(call: Call, group: Group) -> Run:
    """Images, or places in them, are sharded; running statistics, if there are any, move towards those of all."""
    given, momentum, eps = call["input"], call["momentum"], call["eps"]
    dims = _but_channels(given)
    counts = _counts(group, "input", dims)
    mean, variance = (t.flatten() for t in (yield from _statistics(_wide(given), dims, counts, group)))
    affine = (_wide_or_none(call, name) for name in ("weight", "bias"))
    output = given
    if given.numel():
        output = aten._native_batch_norm_legit_no_training(given, *affine, mean, variance, momentum, eps)[0]
    # One channel of two images has statistics of the dtype in which the device keeps them.
    names = ("weight", "bias", "running_mean", "running_var")
    of_one = [call[name].new_ones(1) if name in call and call.has(name) else None for name in names]
    kept = torch.native_batch_norm(given.new_empty(2, 1), *of_one, True, 0.0, 1.0)[1].dtype
    saved = output, mean.to(kept), (variance + eps).rsqrt().to(kept)
    if "running_mean" not in call:
        return saved
    total = sum(counts)
    found = {"running_mean": mean, "running_var": variance * (total / max(total - 1, 1))}
    moved = (call[n] * (1 - momentum) + t.to(call[n].dtype) * momentum for n, t in found.items())
    return *saved, *moved


def _batch_norm_backward(call: Call, group: Group) -> Run:
    """The gradients of weight and bias are sums over images, and what the gradient of each image lacks is their means:
    the kernel sums for the images at hand."""
    x, grad, weight = _wide(call["input"]), _wide(call["grad_out"]), _wide_or_none(call, "weight")
    dims, (mean, rstd) = _but_channels(x), (_wide(call[name]) for name in ("save_mean", "save_invstd"))
    if x.numel():
        saved = (None, None, mean, rstd, True, call["eps"])
        _, *sums = aten.native_batch_norm_backward(grad, x, weight, *saved, [False, True, True])
    else:
        sums = [mean.new_zeros(mean.shape)] * 2
    of_weight, of_bias = (yield group.all_reduce(torch.stack(sums))).unbind()
    total = sum(_counts(group, "input", dims))
    scale = rstd if weight is None else rstd * weight
    slope = -scale * rstd * of_weight / total
    shift = -scale * of_bias / total - slope * mean
    shift, slope, scale = (t.view(-1, *[1] * (x.dim() - 2)) for t in (shift, slope, scale))
    of_input = torch.addcmul(torch.addcmul(shift, x, slope), grad, scale).to(call["input"].dtype)
    dtype = call["input"].dtype if weight is None else call["weight"].dtype
    results = (of_input, of_weight.to(dtype), of_bias.to(dtype))
    return tuple(made if keep else None for made, keep in zip(results, call["output_mask"], strict=True))


STATISTICS: dict[str, Operator] = {
    "aten.native_layer_norm": Operator(in_group=_layer_norm, less_nan=True, along_any=True),
    "aten.native_layer_norm_backward": Operator(in_group=_layer_norm_backward, along_any=True),
    "shardwise.rms_norm": Operator(in_group=_rms_norm, less_nan=True, along_any=True),
    "shardwise.rms_norm_backward": Operator(in_group=_rms_norm_backward, along_any=True),
    "aten.native_group_norm": Operator(in_group=_group_norm, less_nan=True, along_any=True),
    "aten.native_group_norm_backward": Operator(
        in_group=_group_norm_backward, other_infinities=True, along_any=True
    ),
    "aten._native_batch_norm_legit": Operator(in_group=_batch_norm, less_nan=True, along_any=True),
    "aten._native_batch_norm_legit_functional": Operator(in_group=_batch_norm, less_nan=True, along_any=True),
    "aten.native_batch_norm_backward": Operator(
        in_group=_batch_norm_backward, other_infinities=True, along_any=True
    ),
}
