"""What one rank runs for one call of a plan: the operator on its pieces, or what stands for it there.

Most calls run the operator itself. What differs: a view becomes a reshape, because pieces have strides of their own; a
row that names a local form runs that; a random operator draws for the positions that the rank holds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..calls import overload
from ..forms import Piece, draw, local_call
from ..graph import Graph, Node, Ref
from ..layout import Layout
from ..planning import Call, Plan


@dataclass(frozen=True)
class Lowering:
    """A plan's calls, each for any rank.

    `wide` runs everything in double precision, whatever the graph says; `device` is where new tensors are made.
    `traced` leaves random operators that have no draw of their own as they are, for whoever runs the trace to seed.
    """

    plan: Plan
    wide: bool = False
    device: str | None = None
    traced: bool = False

    @cached_property
    def numbers(self) -> dict[str, int]:
        """A number for every node: its stream of random numbers."""
        return {node.name: number for number, node in enumerate(self.plan.graph.nodes)}

    def local(self, call: Call, rank: int) -> "LocalCall":
        """What the rank runs for the call."""
        return LocalCall(self, call, rank)


@dataclass(frozen=True)
class LocalCall:
    """One rank's part in a call."""

    lowering: Lowering
    call: Call
    rank: int

    @cached_property
    def op(self) -> torch._ops.OpOverload:
        return whatever_the_strides(self.call.node)

    @cached_property
    def is_random(self) -> bool:
        return self.call.node.facts.random

    @cached_property
    def form(self) -> str | None:
        return self.call.choice.local

    @cached_property
    def inputs(self) -> tuple[Piece, ...]:
        graph, layouts = self.lowering.plan.graph, self.lowering.plan.schedule.layouts
        return tuple(piece(graph.tensor(v.ref).shape, layouts[v], self.rank) for v in self.call.inputs)

    @cached_property
    def outputs(self) -> tuple[Piece | None, ...]:
        pairs = zip(self.call.node.outputs, self.call.choice.output_layouts, strict=True)
        return tuple(
            None if info is None or layout is None else piece(info.shape, layout, self.rank)
            for info, layout in pairs
        )

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Ranks with equal keys and equal inputs get equal results."""
        return (self.inputs, self.outputs, self._runs if self.is_random else ())

    @cached_property
    def _runs(self) -> tuple[Any, ...]:
        shape, layout = self._drawn
        return tuple(tuple(layout.runs(dim, size, self.rank)) for dim, size in enumerate(shape))

    @cached_property
    def _drawn(self) -> tuple[tuple[int, ...], Layout]:
        """Shape and layout of what a random operator draws."""
        info, layout = self.call.node.outputs[0], self.call.choice.output_layouts[0]
        assert info is not None and layout is not None
        return info.shape, layout

    def __call__(self, tensors: Sequence[Tensor], seed: Tensor | None = None) -> tuple[Any, ...]:
        """The call's outputs on this rank, given its pieces of the inputs."""
        node = self.call.node
        args, kwargs = self.arguments(tensors)
        if node.facts.by_strides:
            args = (_restrided(args[0], self._graph.tensor(node.inputs[0]).stride), *args[1:])
        if self.is_random and not (self.lowering.traced and node.facts.draws is None):
            assert seed is not None
            number = self.lowering.numbers[node.name]
            made = draw(node.overload, args, kwargs, seed, number, self._drawn[0], self._runs)
        elif self.form is None:
            made = self.op(*args, **kwargs)
        else:
            made = local_call(self.form, self.op, args, kwargs, self.inputs, self.outputs)
        return tuple(made) if isinstance(made, tuple | list) else (made,)

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = with_tensors(self.call.node, tensors)
        if not self.lowering.wide and self.lowering.device is None:
            return args, kwargs
        return retargeted((args, kwargs), self.lowering.wide, self.lowering.device)

    @property
    def _graph(self) -> Graph:
        return self.lowering.plan.graph


def piece(shape: tuple[int, ...], layout: Layout, rank: int) -> Piece:
    return Piece(shape, layout.local_shape(shape, rank), layout.offset(shape, rank))


def whatever_the_strides(node: Node) -> torch._ops.OpOverload:
    """The node's operator, for inputs whose strides need not be those that were captured."""
    relaxed = node.facts.any_strides
    return node.overload if relaxed is None else overload(relaxed)


def with_tensors(node: Node, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The node's arguments with these in the place of its tensors, in order."""
    rest = iter(tensors)
    return _filled(node.args, rest), _filled(dict(node.kwargs), rest)


def _filled(value: Any, rest: Iterator[Any]) -> Any:
    if isinstance(value, Ref):
        return next(rest)
    if isinstance(value, tuple | list):
        return type(value)(_filled(item, rest) for item in value)
    if isinstance(value, Mapping):
        return {key: _filled(item, rest) for key, item in value.items()}
    return value


def retargeted(value: Any, wide: bool, device: str | None) -> Any:
    """The arguments of a call with double precision for every float dtype, and with the device for every device."""

    def changed(leaf: Any) -> Any:
        if wide and isinstance(leaf, torch.dtype) and leaf.is_floating_point:
            return torch.float64
        if device is not None and isinstance(leaf, torch.device):
            return torch.device(device)
        return leaf

    return pytree.tree_map(changed, value)


def _restrided(tensor: Tensor, stride: tuple[int, ...] | None) -> Tensor:
    """The tensor with the strides it was captured with, by which the operator finds its elements."""
    if stride is None:
        return tensor.contiguous()
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
