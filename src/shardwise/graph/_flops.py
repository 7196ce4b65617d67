"""What one call costs: floating-point operations and bytes moved, from shapes and dtypes alone.

Matrix products, convolutions and attention are counted by formula; everything else does about one operation per
element of its largest tensor. Views move nothing. A lookup reads the rows it picks, not the table.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ._graph import TensorInfo

# Views that the schema does not show as such, because torch lets them copy or forbids writing through them.
_VIEWS = {
    "aten._unsafe_view.default",
    "aten.detach.default",
    "aten.alias.default",
    "aten._reshape_alias.default",
}

# Operators that read only as much of their first input as they give out.
_LOOKUPS = {
    "aten.embedding.default",
    "aten.index.Tensor",
    "aten.index_select.default",
    "aten.gather.default",
    "aten._embedding_bag.default",
    "aten._embedding_bag_forward_only.default",
}


def cost(
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: Sequence[TensorInfo | None],
) -> tuple[int, int]:
    """Flops and bytes of a call whose tensors are given as `TensorInfo`."""
    name = str(op)
    if is_view(op):
        return 0, 0
    inputs = _tensors((args, kwargs))
    made = [tensor for tensor in outputs if tensor is not None]
    written = sum(tensor.bytes for tensor in made)
    if name in _LOOKUPS:
        read = written + sum(tensor.stored_bytes for tensor in inputs[1:])
    else:
        read = sum(tensor.stored_bytes for tensor in inputs)
    return _flops(op, args, kwargs, outputs, inputs, made), read + written


def is_view(op: torch._ops.OpOverload) -> bool:
    return op.is_view or str(op) in _VIEWS


def _flops(
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: Sequence[TensorInfo | None],
    inputs: Sequence[TensorInfo],
    made: Sequence[TensorInfo],
) -> int:
    if op.overloadpacket in (torch.ops.shardwise.attention, torch.ops.shardwise.attention_backward):
        return _attention_flops(op, args)
    formula = flop_registry.get(op.overloadpacket)
    # Formulas without `__wrapped__` look at the values of tensors (lengths of sequences), which are not known here.
    if formula is not None and hasattr(formula, "__wrapped__"):
        shapes = [None if tensor is None else tensor.shape for tensor in outputs]
        return int(
            formula(
                *_shapes(tuple(args)),
                out_val=shapes if len(shapes) > 1 else shapes[0],
                **_shapes(dict(kwargs)),
            )
        )
    if str(op) in _LOOKUPS:
        return sum(tensor.numel for tensor in made)
    return max((tensor.numel for tensor in (*inputs, *made)), default=0)


def _attention_flops(op: torch._ops.OpOverload, args: Sequence[Any]) -> int:
    given = dict(zip((argument.name for argument in op._schema.arguments), args, strict=True))
    batch, heads, queries, size = given["query"].shape
    keys, value_size = given["key"].shape[-2], given["value"].shape[-1]
    pairs = queries * keys
    if given["causal"]:  # query i sees keys 0..i
        square = min(queries, keys)
        pairs = square * (square + 1) // 2 + (queries - square) * keys
    # Forward: scores and output. Backward: scores again, and the gradients of weights, query, key and value.
    products = 3 * size + 2 * value_size if "grad" in given else size + value_size
    return 2 * batch * heads * pairs * products


def _tensors(value: Any) -> list[TensorInfo]:
    if isinstance(value, TensorInfo):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    return []


def _shapes(value: Any) -> Any:
    if isinstance(value, TensorInfo):
        return value.shape
    if isinstance(value, tuple | list):
        return type(value)(_shapes(item) for item in value)
    if isinstance(value, dict):
        return {key: _shapes(item) for key, item in value.items()}
    return value
