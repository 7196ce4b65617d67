"""What a call costs on one device: a roofline over the flops and bytes of the local shapes.

A kernel takes as long as its arithmetic or its memory traffic, whichever is longer, at the share of the peak that
its kind was measured to reach, and the time of starting it. Views are free.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ..errors import UsageError
from ..graph import Node, TensorInfo, cost, is_view
from ..mesh import Device


def compute_seconds(
    device: Device, op: torch._ops.OpOverload, args: Any, kwargs: Any, outputs: tuple[TensorInfo | None, ...]
) -> float:
    """Seconds of one call whose tensors are given by their local shapes."""
    if is_view(op):
        return 0.0
    flops, moved = cost(op, args, kwargs, outputs)
    kind = kernel_kind(op)
    tensors = [t for t in (*_leaves(args), *_leaves(kwargs), *outputs) if isinstance(t, TensorInfo)]
    dtype = next((t.dtype for t in tensors if t.dtype.is_floating_point), torch.float32)
    arithmetic = flops / (device.rate(dtype) * device.efficiency[kind]) if kind != "memory" else 0.0
    traffic = moved / (device.memory_bandwidth * device.efficiency["memory"])
    return max(arithmetic, traffic) + device.launch


def kernel_kind(op: torch._ops.OpOverload) -> str:
    name = str(op)
    if name.startswith("shardwise.attention"):
        return "attention_backward" if "backward" in name else "attention"
    return "matmul" if op.overloadpacket in flop_registry else "memory"


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]


@dataclass(frozen=True)
class Optimizer:
    """What an optimizer keeps beside a parameter (copies of it in its dtype), and whether it keeps it in float32."""

    name: str
    states: int
    master: bool = False

    @classmethod
    def of(cls, name: str) -> "Optimizer":
        """From `none`, `sgd`, `momentum` or `adam`, with `+master` for a copy of the weights in float32."""
        base, _, extra = name.partition("+")
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
        if self.name == "none":
            return 0.0
        moved = 2 * (parameter.bytes + self.state_bytes(parameter)) + parameter.bytes
        return moved / (device.memory_bandwidth * device.efficiency["memory"])


def local_call(node: Node, inputs: list[TensorInfo], described: Any) -> Any:
    """The arguments of a node with the local shapes of its tensors in their places."""
    waiting = iter(inputs)

    def replace(value: Any) -> Any:
        if isinstance(value, TensorInfo):
            return next(waiting)
        if isinstance(value, tuple | list):
            return tuple(map(replace, value))
        return value

    args, kwargs = described
    return tuple(map(replace, args)), {key: replace(value) for key, value in kwargs.items()}
