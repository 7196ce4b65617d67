"""Recurrent layers in the exported graph: a stack with dropout between its layers becomes its layers, one by one.

Torch's decomposition of a stack omits that dropout; that of a single layer is complete. The stack is put together
here as in torch's own kernels: time before batch, and dropout on the output of every layer but the last.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..calls import facts, overload


def separate_layers(module: fx.GraphModule) -> None:
    """Split every stack of recurrent layers that has dropout between them."""
    for inner in module.modules():
        if not isinstance(inner, fx.GraphModule):
            continue
        for node in list(inner.graph.nodes):
            if node.op == "call_function" and facts(node.target).recurrent:
                layers, dropout, train = (_named(node)[name] for name in ("num_layers", "dropout", "train"))
                if layers > 1 and dropout and train:
                    node.args, node.target = (str(node.target), *node.args), stacked
        inner.recompile()


def _named(node: fx.Node) -> dict[str, Any]:
    return dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=True))


def stacked(name: str, data: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The result of the operator called `name`, computed layer by layer."""
    op = overload(name)
    packed = any(argument.name == "batch_sizes" for argument in op._schema.arguments)
    batch_sizes, rest = ((rest[0],), rest[1:]) if packed else ((), rest)
    state, parameters, biases, layers, dropout, train, bidirectional, *batch_first = rest
    across = bool(batch_first and batch_first[0])
    value = data.transpose(0, 1) if across else data
    last = []
    for layer in range(layers):
        own = _of_layer(parameters, layer, layers)
        flags = (biases, 1, 0.0, train, bidirectional, *([] if packed else [False]))
        value, *hidden = op(value, *batch_sizes, _state_of(state, layer, layers), own, *flags)
        last.append(hidden)
        if layer < layers - 1:
            value = torch.dropout(value, dropout, train)
    return value.transpose(0, 1) if across else value, *(
        torch.cat(parts) for parts in zip(*last, strict=True)
    )


def _of_layer(values: Sequence[Tensor], layer: int, layers: int) -> list[Tensor]:
    size = len(values) // layers
    return list(values[layer * size : (layer + 1) * size])


def _state_of(state: Tensor | Sequence[Tensor], layer: int, layers: int) -> Tensor | list[Tensor]:
    if isinstance(state, Tensor):
        return state.chunk(layers)[layer]
    return [part.chunk(layers)[layer] for part in state]
