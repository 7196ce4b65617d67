"""What one rank runs for one call of a plan: the operator on its pieces, or a replacement for it.

Most calls run the operator itself. The exceptions: pieces have strides of their own, so a view becomes a reshape and a
kernel that relies on strides gets its inputs stored as they were captured; a row that names a local form runs that; a
random operator generates the random numbers of the positions that the rank holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..calls import Call, overload, with_leaves
from ..forms import Group, GroupRun, Held, Piece, Request, call_in_group, draw, local_call, operator_by
from ..graph import Node
from ..layout import Layout
from ..planning import Compute, Plan


@dataclass(frozen=True)
class Lowering:
    """A plan's calls, each for any rank.

    `wide` runs everything in double precision, whatever the graph says; `device` is where new tensors are made.
    `traced` leaves random operators without position-based random numbers unchanged; whoever runs the trace seeds them.
    """

    plan: Plan
    wide: bool = False
    device: str | None = None
    traced: bool = False

    @cached_property
    def _calls(self) -> dict[str, Call]:
        return {}

    def call(self, node: Node) -> Call:
        """The call of a node as it runs: on inputs whose strides need not be those that were captured."""
        if node.name not in self._calls:
            call, relaxed = self.plan.graph.call(node), node.facts.any_strides
            op = call.op if relaxed is None else overload(relaxed)
            self._calls[node.name] = Call(op, *with_leaves((call.args, dict(call.kwargs)), self.retargeted))
        return self._calls[node.name]

    def retargeted(self, leaf: Any) -> Any:
        """An argument, with every float dtype replaced by float64 if `wide`, and every device by `device`."""
        if self.wide and isinstance(leaf, torch.dtype):
            return wide_dtype(leaf)
        if self.device is not None and isinstance(leaf, torch.device):
            return torch.device(self.device)
        return leaf

    def stored(self, node: Node, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The inputs of a node stored as its kernel relies on it, if it does: as the whole ones were captured."""
        infos = [self.plan.graph.tensor(ref) for ref in node.inputs]
        if node.facts.by_strides:
            return [_restrided(tensors[0], infos[0].stride), *tensors[1:]]
        if node.facts.stride_dependent or node.facts.refuses_orders:
            return [_in_order(tensor, info.stride) for tensor, info in zip(tensors, infos, strict=True)]
        return list(tensors)

    def on_rank(self, compute: Compute, rank: int) -> "RankCompute":
        """What the rank runs for an entry of the schedule."""
        return RankCompute(self, compute, rank)


@dataclass(frozen=True)
class RankCompute:
    """One rank's part in an entry of the schedule."""

    lowering: Lowering
    compute: Compute
    rank: int

    @cached_property
    def is_random(self) -> bool:
        return self.compute.node.facts.random

    @cached_property
    def form(self) -> str | None:
        return self.compute.choice.local

    @cached_property
    def held(self) -> Held:
        """What the rank holds of the call's tensors."""
        return self._held_by(self.rank)

    def _held_by(self, rank: int) -> Held:
        node = self.compute.node
        made = [None if info is None else info.shape for info in node.outputs]
        call = self.lowering.call(node)
        return self.compute.choice.held(call, call.shapes, made, rank)

    @property
    def by_values(self) -> bool:
        """Whether what ranks send each other inside of the call depends on values."""
        return (
            self.form is not None and operator_by(self.form, self.lowering.call(self.compute.node)).by_values
        )

    @property
    def outputs(self) -> Sequence[Piece | None]:
        return self.held.outputs

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Ranks with equal keys and equal inputs get equal results."""
        return (self.held.inputs, self.held.outputs, self._runs if self.is_random else ())

    @cached_property
    def _runs(self) -> tuple[Any, ...]:
        shape, layout = self._drawn
        return tuple(tuple(layout.runs(dim, size, self.rank)) for dim, size in enumerate(shape))

    @cached_property
    def _drawn(self) -> tuple[tuple[int, ...], Layout]:
        """Shape and layout of the random numbers of a random operator."""
        info, layout = self.compute.node.outputs[0], self.compute.choice.output_layouts[0]
        assert info is not None and layout is not None
        return info.shape, layout

    def __call__(self, tensors: Sequence[Tensor], seed: Tensor | None = None) -> tuple[Any, ...]:
        """The outputs on this rank, given its pieces of the inputs."""
        node, call = self.compute.node, self._call(tensors)
        if self.is_random and not (self.lowering.traced and node.facts.draws is None):
            assert seed is not None
            made = draw(call, seed, node.stream, self._drawn[0], self._runs)
        elif self.form is None:
            made = call()
        else:
            made = local_call(self.form, call, self.held.inputs, self.held.outputs)
        return _as_tuple(made)

    def in_group(
        self, tensors: Sequence[Tensor], begin: Callable[[Request], None] = lambda request: None
    ) -> GroupRun:
        """The same for a call whose ranks communicate, as a run that stops where it waits for the others; `begin`
        begins its collectives."""
        assert self.form is not None
        ranks = self.compute.choice.group(self.rank)
        group = Group(ranks.index(self.rank), [self._held_by(rank) for rank in ranks], begin)
        made = yield from call_in_group(self.form, self._call(tensors), group)
        return _as_tuple(made)

    def _call(self, tensors: Sequence[Tensor]) -> Call:
        node = self.compute.node
        return self.lowering.call(node).with_tensors(self.lowering.stored(node, tensors))


def _as_tuple(made: Any) -> tuple[Any, ...]:
    return tuple(made) if isinstance(made, tuple | list) else (made,)


def piece(shape: tuple[int, ...], layout: Layout, rank: int) -> Piece:
    return Piece(shape, layout.local_shape(shape, rank), layout.offset(shape, rank))


def widened(tensor: Tensor, wide: bool = True) -> Tensor:
    """The tensor in double precision, if it is of floating-point numbers and `wide`."""
    return tensor.to(wide_dtype(tensor.dtype)) if wide else tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Double precision for floating-point and complex numbers; others as they are."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _in_order(tensor: Tensor, stride: tuple[int, ...] | None) -> Tensor:
    """The tensor, dense, with its dims stored in the order in which those strides store them."""
    order = sorted(range(tensor.dim()), key=lambda dim: -stride[dim] if stride else dim)
    back = [order.index(dim) for dim in range(tensor.dim())]
    dense = tensor.permute(order).contiguous()
    # Kernels that look at strides look at those of dims of one element, too, which `contiguous` leaves as they are.
    return dense.view(-1).view(dense.shape).permute(back)


def _restrided(tensor: Tensor, stride: tuple[int, ...] | None) -> Tensor:
    """The tensor with the strides it was captured with, by which the operator finds its elements."""
    if stride is None:
        return tensor.contiguous()
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
