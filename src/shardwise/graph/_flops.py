"""What one call costs: floating-point operations and bytes moved, from shapes and dtypes alone.

Operators with a formula, torch's own (matrix products, convolutions) or one that they declare (attention), are counted
by it; everything else does about one operation per element of its largest tensor. Views move nothing. A lookup reads
the rows it picks, not the table.
"""

from collections.abc import Sequence

from torch.utils.flop_counter import flop_registry

from ..calls import Call, facts
from ._graph import TensorInfo


def cost(call: Call, outputs: Sequence[TensorInfo | None]) -> tuple[int, int]:
    """Flops and bytes of a call whose tensors are given as `TensorInfo`."""
    known = facts(call.op)
    if known.view:
        return 0, 0
    inputs: Sequence[TensorInfo] = call.tensors
    made = [tensor for tensor in outputs if tensor is not None]
    written = sum(tensor.bytes for tensor in made)
    if known.lookup:
        read = written + sum(tensor.stored_bytes for tensor in inputs[1:])
    else:
        read = sum(tensor.stored_bytes for tensor in inputs)
    read += sum(call[name].stored_bytes for name in known.reread)
    return _flops(call, outputs, made), read + written


def _flops(call: Call, outputs: Sequence[TensorInfo | None], made: Sequence[TensorInfo]) -> int:
    known = facts(call.op)
    if known.flops is not None:
        return known.flops(**call.arguments)
    formula = flop_registry.get(call.op.overloadpacket)  # type: ignore[attr-defined]
    # Formulas without `__wrapped__` look at the values of tensors (lengths of sequences), which are not known here.
    if formula is not None and hasattr(formula, "__wrapped__"):
        shapes = [None if tensor is None else tensor.shape for tensor in outputs]
        of_shapes = call.with_tensors(call.shapes)
        made_shapes = shapes if len(shapes) > 1 else shapes[0]
        return int(formula(*of_shapes.args, out_val=made_shapes, **of_shapes.kwargs))
    if known.lookup:
        return sum(tensor.numel for tensor in made)
    return max((tensor.numel for tensor in (*call.tensors, *made)), default=0)
