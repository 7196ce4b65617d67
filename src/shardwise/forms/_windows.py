"""The communicating form `halo` of convolution and pooling: ranks fetch what their windows reach of others' pieces.

Of a dim over which windows run, each rank has a range of the input and a range of the output, and computes the latter
from the part of the input that its windows cover. What lies beyond the borders of the whole is filled in. In backward
the gradients of what was fetched go back to the ranks that hold it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..calls import Call
from ._group import Group, Request, Run
from ._operator import Operator
from ._piece import Held, Piece

Range = tuple[int, int]


def _range(piece: Piece, dim: int) -> Range:
    return piece.offset[dim], piece.offset[dim] + piece.local[dim]


def _common(some: Range, other: Range) -> Range:
    start, stop = max(some[0], other[0]), min(some[1], other[1])
    return start, max(start, stop)


def _cut(x: Tensor, dim: int, wanted: Range, start: int) -> Tensor:
    return x.narrow(dim, wanted[0] - start, wanted[1] - wanted[0])


@dataclass(frozen=True)
class _Halo:
    """A dim of which each rank of a group holds one range and needs another, which may go beyond the whole."""

    group: Group
    dim: int
    size: int
    held: Sequence[Range]
    needed: Sequence[Range]

    @property
    def inside(self) -> list[Range]:
        """What each rank needs of the whole."""
        return [_common(needed, (0, self.size)) for needed in self.needed]

    def fetch(self, x: Tensor, value: float = 0.0) -> Run:
        """What this rank needs of a tensor of which it has what it holds; beyond the whole there is `value`."""
        rank, inside = self.group.rank, self.inside
        pieces = yield self._exchange(x, self.held, inside)
        own = _common(self.held[rank], inside[rank])
        parts = {own[0]: _cut(x, self.dim, own, self.held[rank][0])} if own[0] < own[1] else {}
        for other, piece in pieces.items():
            parts[_common(self.held[other], inside[rank])[0]] = piece
        joined = [parts[start] for start in sorted(parts)]
        whole = torch.cat(joined, self.dim) if joined else x.narrow(self.dim, 0, 0)
        (start, stop), (first, last) = self.needed[rank], inside[rank]
        before, after = min(max(first - start, 0), stop - start), 0
        after = stop - start - before - (last - first)
        if not (before or after):
            return whole
        padding = [0, 0] * (x.dim() - 1 - self.dim) + [before, after]
        return F.pad(whole, padding, value=value)

    def give_back(self, grad: Tensor) -> Run:
        """What this rank holds of the sum of gradients, each of what a rank needed."""
        rank, inside = self.group.rank, self.inside
        held, needed = self.held[rank], inside[rank]
        start = self.needed[rank][0] if needed[0] < needed[1] else needed[0]
        grad = _cut(grad, self.dim, needed, start)
        pieces = yield self._exchange(grad, inside, self.held)
        total = _placed(grad, self.dim, needed, held)
        for other, piece in pieces.items():
            total = total + _placed(piece, self.dim, _common(inside[other], held), held)
        return total

    def _exchange(self, x: Tensor, has: Sequence[Range], wants: Sequence[Range]) -> Request:
        """The parts of others that this rank wants, by rank."""
        rank, others = self.group.rank, [o for o in range(self.group.size) if o != self.group.rank]
        sent, shapes = {}, {}
        for other in others:
            given, got = _common(has[rank], wants[other]), _common(has[other], wants[rank])
            if given[0] < given[1]:
                sent[other] = _cut(x, self.dim, given, has[rank][0])
            if got[0] < got[1]:
                shapes[other] = (*x.shape[: self.dim], got[1] - got[0], *x.shape[self.dim + 1 :])
        return self.group.send(sent, shapes, x)


def _placed(x: Tensor, dim: int, where: Range, held: Range) -> Tensor:
    """A tensor of some positions cut to those that are held, with zeros for the others."""
    common = _common(where, held)
    if common == held == where:
        return x
    if common[0] == common[1]:
        return x.new_zeros((*x.shape[:dim], held[1] - held[0], *x.shape[dim + 1 :]))
    padding = [0, 0] * (x.dim() - 1 - dim) + [common[0] - held[0], held[1] - common[1]]
    return F.pad(_cut(x, dim, common, where[0]), padding)


def _sharded_dim(piece: Piece, group: Group, name: str) -> int:
    """The dim that the ranks of a group hold different ranges of; any for a group of one, which has all of each."""
    pieces = [held[name] for held in group.held]
    return next((d for d in range(2, len(piece.shape)) if len({_range(p, d) for p in pieces}) > 1), 2)


@dataclass(frozen=True)
class _Windows:
    """The windows along one dim: how far apart they begin, how many positions before the input the first begins, and
    how many positions one spans."""

    stride: int
    padding: int
    span: int

    def reach(self, outputs: Range) -> Range:
        """The positions of the input that the windows of a range of outputs cover."""
        if outputs[0] >= outputs[1]:
            return 0, 0
        start = outputs[0] * self.stride - self.padding
        return start, (outputs[1] - 1) * self.stride - self.padding + self.span

    def origins(self, positions: Range) -> Range:
        """The outputs whose windows cover some of these positions of the input, if any."""
        if positions[0] >= positions[1]:
            return 0, 0
        first = -((self.span - 1 - positions[0] - self.padding) // self.stride)
        return first, (positions[1] - 1 + self.padding) // self.stride + 1


def _of_convolution(call: Call, dim: int) -> _Windows:
    at = dim - 2
    span = _at(call["dilation"], at) * (call["weight"].shape[dim] - 1) + 1
    return _Windows(_at(call["stride"], at), _at(call["padding"], at), span)


def _at(values: Sequence[int], at: int) -> int:
    """The entry of a dim in a list that may have one entry for all of them, or none."""
    return int(values[at] if len(values) > 1 else values[0])


def _with(values: Sequence[int], at: int, dims: int, value: int) -> list[int]:
    full = list(values) if len(values) > 1 else [values[0]] * dims
    return [*full[:at], value, *full[at + 1 :]]


def _unpadded(call: Call, dim: int, dims: int) -> dict[str, Any]:
    return {"padding": _with(call["padding"], dim - 2, dims, 0)}


def _convolution(call: Call, group: Group) -> Run:
    x, output = call["input"], group.own.output
    dim, dims = _sharded_dim(group.own["input"], group, "input"), x.dim() - 2
    windows = _of_convolution(call, dim)
    made = [_range(held.output, dim) for held in group.held]
    held = [_range(each["input"], dim) for each in group.held]
    size = group.own["input"].shape[dim]
    changes = _unpadded(call, dim, dims)
    if not call["transposed"]:
        halo = _Halo(group, dim, size, held, [windows.reach(outputs) for outputs in made])
        x = yield from halo.fetch(x)
        if not output.local[dim]:
            return x.new_empty(output.local)
        return call(input=x, **changes)
    # Transposed, an element of the input reaches what its window covers of the output.
    needed = [_common(windows.origins(outputs), (0, size)) for outputs in made]
    x = yield from _Halo(group, dim, size, held, needed).fetch(x)
    (start, stop), own = needed[group.rank], made[group.rank]
    bias = call["bias"]
    if start == stop:
        empty = x.new_zeros(output.local)
        return empty if bias is None else empty + bias.view(-1, *[1] * dims)
    changes["output_padding"] = _with(call["output_padding"], dim - 2, dims, 0)
    found = call(input=x, bias=None, **changes)
    found = _placed(
        found, dim, (start * windows.stride - windows.padding, windows.reach((start, stop))[1]), own
    )
    return (found if bias is None else found + bias.view(-1, *[1] * dims)).contiguous()


def _convolution_backward(call: Call, group: Group) -> Run:
    x, grad = call["input"], call["grad_output"]
    dim, dims = _sharded_dim(group.own["input"], group, "input"), x.dim() - 2
    windows = _of_convolution(call, dim)
    made = [_range(each["grad_output"], dim) for each in group.held]
    held = [_range(each["input"], dim) for each in group.held]
    size, rank = group.own["input"].shape[dim], group.rank
    of_input, _, of_bias = call["output_mask"]
    changes = _unpadded(call, dim, dims)
    weight_and_bias: list[Tensor | None]
    if not call["transposed"]:
        halo = _Halo(group, dim, size, held, [windows.reach(outputs) for outputs in made])
        wide = yield from halo.fetch(x)
        if made[rank][0] < made[rank][1]:
            grad_wide, *weight_and_bias = call(input=wide, **changes)
        else:
            grad_wide, weight_and_bias = x.new_zeros(wide.shape), _nothing(call)
        grad_input = (yield from halo.give_back(grad_wide)) if of_input else None
        return grad_input, *weight_and_bias
    length = group.own["grad_output"].shape[dim]
    halo = _Halo(group, dim, length, made, [windows.reach(inputs) for inputs in held])
    wide = yield from halo.fetch(grad)
    changes["output_padding"] = _with(call["output_padding"], dim - 2, dims, 0)
    if held[rank][0] < held[rank][1]:
        grad_input, grad_weight, _ = call(grad_output=wide, **changes)
    else:
        grad_input, (grad_weight, _) = x.new_zeros(x.shape), _nothing(call)
    outer = [d for d in range(grad.dim()) if d != 1]
    return grad_input if of_input else None, grad_weight, grad.sum(outer) if of_bias else None


def _nothing(call: Call) -> list[Tensor | None]:
    """The gradients of weight and bias by no window."""
    weight, (_, of_weight, of_bias) = call["weight"], call["output_mask"]
    return [
        weight.new_zeros(weight.shape) if of_weight else None,
        weight.new_zeros(call["grad_output"].shape[1]) if of_bias else None,
    ]


def _of_pooling(call: Call, dim: int) -> _Windows:
    at, kernel = dim - 2, call["kernel_size"]
    dilation = _at(call["dilation"], at) if "dilation" in call else 1
    return _Windows(
        _at(call["stride"] or kernel, at), _at(call["padding"], at), dilation * (_at(kernel, at) - 1) + 1
    )


def _pooling_halo(call: Call, group: Group, name: str) -> _Halo:
    """What the windows of each rank's outputs reach; `name` is the argument with the shape of these, if one has it."""
    dim = _sharded_dim(group.own["self"], group, "self")
    made = [_range(_pooled(each, name), dim) for each in group.held]
    held = [_range(each["self"], dim) for each in group.held]
    windows = _of_pooling(call, dim)
    return _Halo(group, dim, group.own["self"].shape[dim], held, [windows.reach(each) for each in made])


def _pooled(held: Held, name: str) -> Piece:
    piece = held[name] if name else held.outputs[0]
    assert piece is not None
    return piece


def _changes(call: Call, group: Group, halo: _Halo, name: str) -> tuple[dict[str, Any], Tensor | None]:
    """Arguments for what was fetched; and the number of elements that each average is of, where that differs between
    windows: those at the border may reach beyond what counts."""
    changes = _unpadded(call, halo.dim, call["self"].dim() - 2)
    if "count_include_pad" not in call or call["divisor_override"] is not None:
        return changes, None
    pads = call["padding"] if call["count_include_pad"] else [0]
    if not (call["ceil_mode"] or (any(call["padding"]) and not any(pads))):
        return changes, None
    counts = call["self"].new_ones(())
    pooled = _pooled(group.own, name)
    for dim in range(2, call["self"].dim()):
        windows, size, pad = _of_pooling(call, dim), group.own["self"].shape[dim], _at(pads, dim - 2)
        places = torch.arange(*_range(pooled, dim), device=counts.device)
        starts = places * windows.stride - windows.padding
        reached = (starts + windows.span).clamp(max=size + pad) - starts.clamp(min=-pad)
        counts = counts.unsqueeze(-1) * reached.to(counts.dtype)
    return changes | {"divisor_override": 1}, counts


def _average(call: Call, group: Group) -> Run:
    halo = _pooling_halo(call, group, "")
    x = yield from halo.fetch(call["self"])
    output = group.own.output
    if not all(output.local):
        return x.new_empty(output.local)
    changes, counts = _changes(call, group, halo, "")
    made = call(self=x, **changes)
    return made if counts is None else made / counts


def _average_backward(call: Call, group: Group) -> Run:
    halo = _pooling_halo(call, group, "grad_output")
    wide = yield from halo.fetch(call["self"])
    grad = call["grad_output"]
    if grad.numel():
        changes, counts = _changes(call, group, halo, "grad_output")
        made = call(self=wide, grad_output=grad if counts is None else grad / counts, **changes)
    else:
        made = wide.new_zeros(wide.shape)
    return (yield from halo.give_back(made))


def _largest(call: Call, group: Group) -> Run:
    """Values and places; places count in the whole input."""
    halo = _pooling_halo(call, group, "")
    x = yield from halo.fetch(call["self"], -torch.inf)
    output = group.own.outputs[0]
    assert output is not None
    if not all(output.local):
        return x.new_empty(output.local), x.new_empty(output.local, dtype=torch.int64)
    values, places = call(self=x, **_unpadded(call, halo.dim, x.dim() - 2))
    before, after = x.shape[2:], group.own["self"].shape[2:]
    return values, _moved(places, before, after, halo.dim - 2, halo.needed[group.rank][0])


def _moved(places: Tensor, before: Sequence[int], after: Sequence[int], at: int, by: int) -> Tensor:
    """Places in images of these sizes as places in images of others, of which one dim begins elsewhere."""
    indices = list(torch.unravel_index(places, tuple(before)))
    indices[at] = indices[at] + by
    found = indices[0]
    for index, size in zip(indices[1:], after[1:], strict=True):
        found = found * size + index
    return found


def _largest_backward(call: Call, group: Group) -> Run:
    """Gradients go where the largest elements were, whose places count in the whole input."""
    halo, grad, x = _pooling_halo(call, group, "grad_output"), call["grad_output"], call["self"]
    start, stop = halo.needed[group.rank]
    wide = x.new_zeros((*x.shape[: halo.dim], stop - start, *x.shape[halo.dim + 1 :]))
    if not grad.numel():
        return (yield from halo.give_back(wide))
    places = _moved(call["indices"], group.own["self"].shape[2:], wide.shape[2:], halo.dim - 2, -start)
    made = call(self=wide, indices=places, **_unpadded(call, halo.dim, x.dim() - 2))
    return (yield from halo.give_back(made))


HALO: dict[str, Operator] = {
    "aten.convolution": Operator(in_group=_convolution),
    "aten.convolution_backward": Operator(in_group=_convolution_backward),
    "aten.avg_pool2d": Operator(in_group=_average),
    "aten.avg_pool2d_backward": Operator(in_group=_average_backward),
    "aten.avg_pool3d": Operator(in_group=_average),
    "aten.avg_pool3d_backward": Operator(in_group=_average_backward),
    "aten.max_pool2d_with_indices": Operator(in_group=_largest),
    "aten.max_pool2d_with_indices_backward": Operator(in_group=_largest_backward),
    "aten.max_pool3d_with_indices": Operator(in_group=_largest),
    "aten.max_pool3d_with_indices_backward": Operator(in_group=_largest_backward),
}
