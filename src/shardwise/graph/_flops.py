"""What one call costs: floating-point operations and bytes moved, from shapes and dtypes alone.

Operators with a formula, torch's own (matrix products, convolutions) or one that they declare (attention), are counted
by it; everything else does about one operation per element of its largest tensor. Views move nothing. A lookup reads
the rows it picks, not the table.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ..calls import facts, named_arguments
from ._graph import TensorInfo


def cost(
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: Sequence[TensorInfo | None],
) -> tuple[int, int]:
    """Flops and bytes of a call whose tensors are given as `TensorInfo`."""
    known = facts(op)
    if known.view:
        return 0, 0
    inputs = _tensors((args, kwargs))
    made = [tensor for tensor in outputs if tensor is not None]
    written = sum(tensor.bytes for tensor in made)
    if known.lookup:
        read = written + sum(tensor.stored_bytes for tensor in inputs[1:])
    else:
        read = sum(tensor.stored_bytes for tensor in inputs)
    return _flops(op, args, kwargs, outputs, inputs, made), read + written


def _flops(
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: Sequence[TensorInfo | None],
    inputs: Sequence[TensorInfo],
    made: Sequence[TensorInfo],
) -> int:
    known = facts(op)
    if known.flops is not None:
        return known.flops(**named_arguments(op, args, dict(kwargs)))
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
    if known.lookup:
        return sum(tensor.numel for tensor in made)
    return max((tensor.numel for tensor in (*inputs, *made)), default=0)


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
