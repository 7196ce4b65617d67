"""Linear layers as calls of their own, `shardwise::linear` and `shardwise::linear_weight`.

Below autograd a linear layer of a sequence is a view, a product of two matrices and a view back: positions can then be
sharded no more, since they are not the outermost part of the rows. As one call it keeps its dims, so that they can, and
the product can be split against the collective that brings its input or takes its result (`forms/_split`). Its backward
is the layer again, with the weight transposed, and the gradient of the weight.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from ..calls import declare
from ._graph import Graph

aten = torch.ops.aten


def _forward(input: Tensor, weight: Tensor) -> Tensor:
    return F.linear(input, weight).contiguous()


def _weight_gradient(grad: Tensor, input: Tensor) -> Tensor:
    return grad.flatten(0, -2).t() @ input.flatten(0, -2)


linear = torch.library.custom_op(
    "shardwise::linear", _forward, mutates_args=(), schema="(Tensor input, Tensor weight) -> Tensor"
)
linear_weight = torch.library.custom_op(
    "shardwise::linear_weight",
    _weight_gradient,
    mutates_args=(),
    schema="(Tensor grad, Tensor input) -> Tensor",
)


def _products(input: Any, weight: Any) -> list[tuple[int, int, int, int]]:
    return [(1, math.prod(input.shape[:-1]), *weight.shape)]


def _weight_products(grad: Any, input: Any) -> list[tuple[int, int, int, int]]:
    return [(1, grad.shape[-1], input.shape[-1], math.prod(input.shape[:-1]))]


def _operations(products: Callable[..., list[tuple[int, int, int, int]]]) -> Callable[..., int]:
    return lambda **arguments: sum(2 * math.prod(each) for each in products(**arguments))


declare(linear, kernel="matmul", products=_products, flops=_operations(_products))
declare(linear_weight, kernel="matmul", products=_weight_products, flops=_operations(_weight_products))


@linear.register_fake
def _(input: Tensor, weight: Tensor) -> Tensor:
    return input.new_empty(*input.shape[:-1], weight.shape[0])


@linear_weight.register_fake
def _(grad: Tensor, input: Tensor) -> Tensor:
    return input.new_empty(grad.shape[-1], input.shape[-1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    input, weight = ctx.saved_tensors
    of_input, of_weight = ctx.needs_input_grad
    return (
        linear(grad, weight.t()) if of_input else None,
        linear_weight(grad, input) if of_weight else None,
    )


linear.register_autograd(_differentiate, setup_context=_save)


def keep_layers(module: fx.GraphModule) -> None:
    """Replace linear layers in an exported graph by calls of the operator."""
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            for node in inner.graph.find_nodes(op="call_function", target=aten.linear.default):
                node.target = _layer
            inner.recompile()


def has_layers(graph: Graph) -> bool:
    """Whether a graph was captured with linear layers as calls of their own."""
    return any(node.overload.overloadpacket is torch.ops.shardwise.linear for node in graph.nodes)


def _layer(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if torch.is_autocast_enabled(input.device.type):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, weight, bias = (t if t is None else t.to(dtype) for t in (input, weight, bias))
    if input.dim() < 2 or weight.dim() < 2 or not input.is_floating_point():
        return aten.linear.default(input, weight, bias)
    made = linear(input, weight)
    return made if bias is None else made + bias
