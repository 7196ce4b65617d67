"""RMS normalisation as one device-neutral pair of operators, `shardwise::rms_norm` and its backward.

On a GPU torch runs it as one kernel, but on CPU tensors, on which graphs are captured, it is decomposed before a graph
could show it. The pair stands for the kernel in eager programs: x / sqrt(mean(x^2) + eps) * weight, with the factor of
each row as second output, which backward uses. Compiled programs have the parts, which the compiler fuses.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..calls import declare

aten = torch.ops.aten


def _dims(normalized_shape: Sequence[int]) -> list[int]:
    return list(range(-len(normalized_shape), 0))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _forward(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    wide = input.to(_wide(input.dtype))
    rstd = torch.rsqrt(wide.pow(2).mean(_dims(normalized_shape), keepdim=True) + eps)
    normed = wide * rstd * weight
    return normed.to(input.dtype).contiguous(), rstd


def _backward(
    grad_out: Tensor, input: Tensor, normalized_shape: Sequence[int], rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    dims, wide = _dims(normalized_shape), input.to(rstd.dtype)
    normed, grad = wide * rstd, grad_out.to(rstd.dtype)
    weighted = grad * weight
    row = (weighted * normed).mean(dims, keepdim=True)
    grad_input = ((weighted - normed * row) * rstd).to(input.dtype).contiguous()
    outer = list(range(input.dim() - len(normalized_shape)))
    grad_weight = (grad * normed).sum(outer) if outer else grad * normed
    return grad_input, grad_weight.to(weight.dtype)


rms_norm = torch.library.custom_op(
    "shardwise::rms_norm",
    _forward,
    mutates_args=(),
    schema="(Tensor input, int[] normalized_shape, Tensor weight, float eps) -> (Tensor, Tensor)",
)
rms_norm_backward = torch.library.custom_op(
    "shardwise::rms_norm_backward",
    _backward,
    mutates_args=(),
    schema=(
        "(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, Tensor weight) "
        "-> (Tensor, Tensor)"
    ),
)
declare(rms_norm, kernel="reduction")
declare(rms_norm_backward, kernel="reduction", reread=("grad_out", "input"))


@rms_norm.register_kernel("cuda")
def _(input: Tensor, normalized_shape: Sequence[int], weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return aten._fused_rms_norm.default(input.contiguous(), normalized_shape, weight, eps)


@rms_norm_backward.register_kernel("cuda")
def _(
    grad_out: Tensor, input: Tensor, normalized_shape: Sequence[int], rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    return aten._fused_rms_norm_backward.default(
        grad_out.contiguous(), input.contiguous(), normalized_shape, rstd, weight, [True, True]
    )


@rms_norm.register_fake
def _(input: Tensor, normalized_shape: Sequence[int], weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    kept = input.dim() - len(normalized_shape)
    rows = (*input.shape[:kept], *[1] * len(normalized_shape))
    return input.new_empty(input.shape), input.new_empty(rows, dtype=_wide(input.dtype))


@rms_norm_backward.register_fake
def _(
    grad_out: Tensor, input: Tensor, normalized_shape: Sequence[int], rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    return input.new_empty(input.shape), weight.new_empty(weight.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, ctx.normalized_shape, weight, _ = inputs
    ctx.save_for_backward(input, output[1], weight)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    input, rstd, weight = ctx.saved_tensors
    of_input, of_weight = rms_norm_backward(grad, input, ctx.normalized_shape, rstd, weight)
    return of_input, None, of_weight, None


rms_norm.register_autograd(_differentiate, setup_context=_save)


def fuse_norms(module: fx.GraphModule, chosen: Callable[[fx.Node], bool]) -> None:
    """Replace the chosen calls of `rms_norm` with a weight in an exported graph by one of the pair."""
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            for node in inner.graph.find_nodes(op="call_function", target=aten.rms_norm.default):
                if chosen(node):
                    node.target = _fused
            inner.recompile()


def _fused(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    if weight is None or not input.is_floating_point() or weight.dtype != input.dtype:
        return aten.rms_norm.default(input, normalized_shape, weight, eps)
    small = torch.finfo(_wide(input.dtype)).eps if eps is None else eps
    return rms_norm(input, list(normalized_shape), weight, small)[0]
