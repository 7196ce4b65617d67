"""What a call costs on one device, from its local shapes.

Matrix products follow the device's law of them, by their shape. Any other kernel takes as long as its arithmetic or its
memory traffic, whichever is longer, at the share of the peak that its kind was measured to reach, and the time of
starting it. Calls that share a kernel pay for what crosses its border, the first of them for starting it. Views are
free.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..calls import Call, facts
from ..errors import UsageError
from ..graph import Border, Graph, TensorInfo, cost
from ..mesh import Device, worked_head

# Kernels that run beside a collective take longer by this share of its time: 13 to 15 %, as measured by the authors of
# torchtitan on H100.
SLOWDOWN = 0.14

# Queries that one processor works on at a time.
_TILE = 128


def compute_seconds(
    device: Device,
    kind: str,
    call: Call,
    outputs: Sequence[TensorInfo | None],
    border: Border | None = None,
) -> float:
    """Seconds of one call whose tensors are given by their local shapes; its kind is that of the whole call.

    With a `border` it is part of a kernel, and costs what it moves across that.
    """
    known = facts(call.op)
    if known.view:
        return 0.0
    if border is not None:
        moved = _moved(call, outputs, border) / device.sustained.get(border.kind, 1.0)
        return device.traffic_seconds(border.kind, moved, starts=border.starts)
    flops, moved = cost(call, outputs)
    tensors = [*call.tensors, *(t for t in outputs if t is not None)]
    dtype = next((t.dtype for t in tensors if t.dtype.is_floating_point), torch.float32)
    if known.products is not None:
        products = sum(device.product_seconds(*each, dtype) for each in known.products(**call.arguments))
        products = products / device.sustained.get("matmul", 1.0) + known.launches * device.launch
        if known.traffic is None:
            return products
        between = device.traffic_seconds("memory", known.traffic(**call.arguments))
        return products + between / device.sustained.get("memory", 1.0)
    if kind == "matmul" and (shape := _product(call, outputs, flops)) is not None:
        return device.product_seconds(*shape, dtype, moved) / device.sustained.get(kind, 1.0)
    tail = 0.0
    if device.tiled_heads and known.heads is not None:
        *rows, size = call.shape(known.heads)
        flops = flops * worked_head(size) // size
        if known.causal is not None and call[known.causal] and math.prod(rows):
            # The last tile has all keys where the average one has half of them.
            tail = device.tail_seconds(kind, 2 * flops * _TILE / math.prod(rows), dtype)
    elements = max((t.numel for t in outputs if t is not None), default=0)
    alone = device.seconds(kind, flops, moved, dtype, elements) - device.launch
    return alone / device.sustained.get(kind, 1.0) + tail + device.launch


def _moved(call: Call, outputs: Sequence[TensorInfo | None], border: Border) -> float:
    """The bytes that a call moves across the border of its kernel."""
    made = [tensor.bytes for tensor in outputs if tensor is not None]
    looked_up = facts(call.op).lookup
    inputs: Sequence[TensorInfo] = call.tensors
    read = sum(
        sum(made) if looked_up and place == 0 else inputs[place].stored_bytes * times
        for place, times in border.reads
    )
    written = (outputs[place] for place in border.writes)
    return read + sum(tensor.bytes for tensor in written if tensor is not None)


def _product(
    call: Call, outputs: Sequence[TensorInfo | None], flops: int
) -> tuple[int, int, int, float] | None:
    """Batch, rows, columns and inner dim of a matrix product, from its operations and its largest result.

    The channels of a convolution are the columns of a product with as many rows as there are windows. None for a result
    without elements or without a dim.
    """
    result = max((t for t in outputs if t is not None), key=lambda t: t.numel, default=None)
    if result is None or not result.numel or not result.shape:
        return None
    inner = flops / (2 * result.numel)
    slides = any(name in facts(call.op).windows for name in call.arguments)
    if slides and len(result.shape) > 1:
        return 1, result.numel // result.shape[1], result.shape[1], inner
    columns = result.shape[-1]
    rows = result.shape[-2] if len(result.shape) > 1 else 1
    return result.numel // (rows * columns), rows, columns, inner


def kernel_kind(
    op: torch._ops.OpOverload, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo | None]
) -> str:
    """What limits the kernel: one of the kinds of `Device`. The strides are those of the unsharded program."""
    known = facts(op).kernel
    if known is not None:
        return known
    return "strided" if _strided(op, inputs, outputs[0]) else "memory"


def _strided(op: torch._ops.OpOverload, inputs: Sequence[TensorInfo], result: TensorInfo | None) -> bool:
    """Whether elements are found one by one, because tensors lie differently in memory or a cast widens them."""
    many = [t for t in inputs if t.numel > 1]
    if not many or result is None:
        return False
    if any(t.dtype.itemsize < result.dtype.itemsize for t in many if t.dtype.is_floating_point):
        return True
    if facts(op).elementwise:
        return any((t.shape, t.stride) != (result.shape, result.stride) for t in many)
    return any(t.stride is not None for t in many)


def workspace_bytes(graph: Graph, device: Device) -> int:
    """What libraries of matrix products keep: forward and backward call them from threads of their own."""
    if not any(node.facts.kernel == "matmul" for node in graph.nodes):
        return 0
    return device.workspace * (2 if graph.training else 1)


def host_seconds(graph: Graph, device: Device, again: int = 0, collectives: int = 0) -> float:
    """How long the host needs to start a pass, with so many of its calls `again` and so many collectives: views are
    calls, too, and calls in one kernel start once."""
    alone = sum(graph.region(node) is None for node in graph.nodes)
    seconds = device.host_seconds("eager", alone + again) if alone else 0.0
    seconds += device.host_seconds("collective", collectives)
    if alone == len(graph.nodes):
        return seconds
    compiled = (node for node in graph.nodes if graph.region(node) is not None and not node.facts.view)
    borders = (graph.kernels.borders.get(node.name) for node in compiled)
    return seconds + device.host_seconds(
        "compiled", sum(border is None or border.starts for border in borders)
    )


def scratch_bytes(call: Call) -> int:
    """What a kernel holds while it runs, beside its inputs and outputs."""
    scratch = facts(call.op).scratch
    return 0 if scratch is None else scratch(**call.arguments)


def accumulation_seconds(gradient: TensorInfo, passes: int, device: Device) -> float:
    """The time of adding up the gradients of the passes of a step: each but the first is read, with the sum of those
    before it, which is written."""
    return (passes - 1) * 3 * gradient.bytes / (device.memory_bandwidth * device.share("memory"))


def cast_seconds(gradient: TensorInfo, dtype: torch.dtype, device: Device) -> float:
    """The time of casting a gradient that was added up to its parameter's dtype, if that is another."""
    if gradient.dtype == dtype:
        return 0.0
    moved = gradient.bytes + gradient.numel * dtype.itemsize
    return moved / (device.memory_bandwidth * device.share("memory"))


@dataclass(frozen=True)
class OptimizerCost:
    """What an optimizer keeps beside a parameter (copies of it in its dtype), and whether it keeps it in float32."""

    name: str
    states: int
    master: bool = False

    @classmethod
    def of(cls, name: str) -> "OptimizerCost":
        """From `none`, `sgd`, `momentum` or `adam`, with `+master` for a copy of the weights in float32."""
        base, _, extra = str(name).partition("+")
        states = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
        if base not in states or extra not in ("", "master"):
            raise UsageError(
                f"unknown optimizer {name!r}: use none, sgd, momentum or adam, and +master for float32 weights"
            )
        return cls(name, states[base], extra == "master")

    def state_bytes(self, parameter: TensorInfo) -> int:
        """Bytes kept from step to step beside the parameter and its gradient."""
        if self.master:
            return parameter.numel * 4 * (self.states + (parameter.dtype.itemsize < 4))
        return parameter.bytes * self.states

    def seconds(self, parameter: TensorInfo, device: Device) -> float:
        """The time of one update: everything is read, and all but the gradient is written."""
        return self._moved(parameter) / (device.memory_bandwidth * device.share("memory"))

    def host_seconds(self, parameter: TensorInfo, device: Device) -> float:
        """The time of one update by the host, to which the gradient is moved, and from which the parameter comes."""
        assert device.host_link is not None and device.host_bandwidth is not None
        return 2 * parameter.bytes / device.host_link + self._moved(parameter) / device.host_bandwidth

    def _moved(self, parameter: TensorInfo) -> int:
        if self.name == "none":
            return 0
        return 2 * (parameter.bytes + self.state_bytes(parameter)) + parameter.bytes
