"""The communicating form `split`: a product in pieces, beside the collective that brings its input or takes its result.

A product of rows that all ranks have parts of need not wait until they are gathered: the parts go round the ranks,
and each is multiplied while the next is on its way. A product whose results are to be summed over ranks, and scattered,
need not end before they are: what belongs to one rank goes round, and every rank adds its own product to it. It does so
for two halves in turn, so that one moves while the other is made.
"""

import math

import torch
from torch import Tensor

from ..calls import Call
from ._group import Group, Request, Run
from ._operator import Operator
from ._piece import Piece


class _Rows:
    """A tensor's rows, which are counted by all dims but the last; ranks of a group have ranges along one of these."""

    def __init__(self, pieces: list[Piece], dim: int) -> None:
        first = min(piece.offset[dim] for piece in pieces)
        self.dim = dim
        self.sizes = [piece.local[dim] for piece in pieces]
        # An empty piece lies at the end of the whole tensor, wherever the others of its group are.
        self.starts = [piece.offset[dim] - first if piece.local[dim] else 0 for piece in pieces]

    def shape(self, like: Tensor, size: int) -> tuple[int, ...]:
        """That of so many of a tensor's rows."""
        return (*like.shape[: self.dim], size, *like.shape[self.dim + 1 :])

    def matrices(self, tensor: Tensor) -> Tensor:
        """A batch of matrices of rows, which are cut as the tensor is."""
        batch, rows = math.prod(tensor.shape[: self.dim]), math.prod(tensor.shape[self.dim : -1])
        return tensor.view(batch, rows, tensor.shape[-1])

    def part(self, tensor: Tensor, rank: int) -> Tensor:
        return tensor.narrow(self.dim, self.starts[rank], self.sizes[rank])


def _cut_dims(pieces: list[Piece]) -> list[int]:
    """The dims of a tensor that the ranks of a group hold different ranges of."""
    count = len(pieces[0].shape)
    return [dim for dim in range(count) if len({(p.offset[dim], p.local[dim]) for p in pieces}) > 1]


def _pieces(group: Group, name: str) -> list[Piece]:
    return [held[name] for held in group.held]


def _linear(call: Call, group: Group) -> Run:
    """Rows are gathered where the columns of the result are cut, and scattered where the inner dim is."""
    (cut,) = _cut_dims(_pieces(group, "weight"))
    return (yield from (_scattered if cut else _gathered)(call, group))


def _gathered(call: Call, group: Group) -> Run:
    pieces = _pieces(group, "input")
    (dim,) = _cut_dims(pieces)
    rows, part, by = _Rows(pieces, dim), call["input"].contiguous(), call["weight"].t()
    made = part.new_empty((*rows.shape(part, sum(rows.sizes))[:-1], by.shape[1]))
    for step in range(group.size):
        rank = (group.rank - step) % group.size
        onward = _onward(group, part, rows, step)
        _multiply(rows.matrices(part), by, rows.matrices(rows.part(made, rank)))
        if onward is not None:
            part = yield onward
    return made


def _onward(group: Group, part: Tensor, rows: _Rows, step: int) -> Request | None:
    """The rows that this rank has in a step, on their way to the next, and those of the one before it."""
    if step + 1 == group.size:
        return None
    return group.permute(part, shape=rows.shape(part, rows.sizes[(group.rank - step - 1) % group.size]))


def _multiply(rows: Tensor, by: Tensor, into: Tensor) -> None:
    """Matrices by a matrix, written where the result belongs."""
    if not into.numel():
        return
    if rows.shape[0] == 1:
        torch.mm(rows[0], by, out=into[0])
    else:
        torch.bmm(rows, by.expand(rows.shape[0], -1, -1), out=into)


def _scattered(call: Call, group: Group) -> Run:
    pieces = [held.output for held in group.held]
    (dim,) = _cut_dims(pieces)
    rows, given, by = _Rows(pieces, dim), call["input"].contiguous(), call["weight"].t()
    halves: list[Tensor] = [given.new_empty(0)] * 2
    moving: list[Request | None] = [None, None]
    for step in range(group.size):
        rank = (group.rank - 1 - step) % group.size
        for half, wanted in enumerate(_halves(rows.part(given, rank), dim)):
            sums = moving[half]
            arrived = None if sums is None else (yield sums)
            made = _added(rows.matrices(wanted), by, arrived)
            halves[half] = made.view(*wanted.shape[:-1], by.shape[1])
            if step + 1 < group.size:
                size = _halved(rows.sizes[(rank - 1) % group.size])[half]
                moving[half] = group.permute(halves[half], shape=rows.shape(halves[half], size))
    return torch.cat(halves, dim)


def _halved(size: int) -> tuple[int, int]:
    return size - size // 2, size // 2


def _halves(rows: Tensor, dim: int) -> tuple[Tensor, ...]:
    return rows.split(_halved(rows.shape[dim]), dim)


def _added(rows: Tensor, by: Tensor, to: Tensor | None) -> Tensor:
    """The products of matrices by a matrix, added to what there is."""
    batch, count = rows.shape[:2]
    shape = batch, count, by.shape[1]
    if to is None:
        return rows @ by
    if batch == 1:
        return torch.addmm(to.view(shape)[0], rows[0], by).unsqueeze(0)
    return torch.baddbmm(to.view(shape), rows, by.expand(batch, -1, -1))


def _weight(call: Call, group: Group) -> Run:
    """The rows of the gradient or of the input are gathered: each part is multiplied by the same rows of the other."""
    name, other = (
        ("input", "grad")
        if _cut_dims(_pieces(group, "grad"))[0] == call["grad"].dim() - 1
        else ("grad", "input")
    )
    pieces = _pieces(group, name)
    (dim,) = _cut_dims(pieces)
    rows, part = _Rows(pieces, dim), call[name].contiguous()
    total: Tensor | None = None
    for step in range(group.size):
        rank = (group.rank - step) % group.size
        onward = _onward(group, part, rows, step)
        given = {name: part, other: rows.part(call[other], rank)}
        grad, input = (given[each].flatten(0, -2) for each in ("grad", "input"))
        total = grad.t() @ input if total is None else torch.addmm(total, grad.t(), input)
        if onward is not None:
            part = yield onward
    assert total is not None
    return total


SPLIT: dict[str, Operator] = {
    "shardwise.linear": Operator(in_group=_linear, rows_whole=("input",)),
    "shardwise.linear_weight": Operator(in_group=_weight, rows_whole=("grad", "input")),
}
