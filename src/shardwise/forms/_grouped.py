"""The local form `runs` of grouped matrix products, `aten._grouped_mm`.

Of rows that lie one group after another, `offs` says where each group ends. A rank that has some of the rows needs to
know where groups end among them; one that has some of the groups, which rows are theirs: those go first, and what it
computes of the others is zero. Kernels read operands whose rows begin at multiples of 16 bytes, which pieces need not.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..calls import Call
from ._operator import Operator
from ._piece import Held, Piece

_ALIGNED = 16  # bytes


@dataclass(frozen=True)
class Grouped:
    """Which dims of a grouped product the groups lie along, by the number of dims of its factors: the dim of each
    factor that holds rows of all groups, and the tensor whose first dim counts groups."""

    along: Mapping[str, int]
    counted: str

    @classmethod
    def of(cls, call: Call) -> "Grouped | None":
        """None for a product of two stacks of matrices, whose groups are those of a batch."""
        return _GROUPED.get((len(call.shape("self")), len(call.shape("mat2"))))


_GROUPED = {
    (2, 3): Grouped({"self": 0}, "mat2"),
    (2, 2): Grouped({"self": 1, "mat2": 0}, "output"),
    (3, 2): Grouped({"mat2": 1}, "self"),
}


def _run(call: Call, held: Held) -> Tensor:
    tensors = {name: call[name] for name in ("self", "mat2")}
    grouped, output = Grouped.of(call), held.output
    if not all(output.local):
        return _zeros(call, output)
    if grouped is None:
        return call(**{name: _readable(tensor) for name, tensor in tensors.items()})
    name, dim = next(iter(grouped.along.items()))
    piece = held[name]
    ends = (call["offs"] - piece.offset[dim]).clamp(0, piece.local[dim])
    groups = output if grouped.counted == "output" else held[grouped.counted]
    if not groups.cuts(0):
        return call(offs=ends, **{name: _readable(tensor) for name, tensor in tensors.items()})
    if not groups.local[0]:
        return _zeros(call, output)
    first, length = groups.offset[0], piece.local[dim]
    begin = ends[first - 1] if first else torch.zeros_like(ends[0])
    ends = ends[first : first + groups.local[0]] - begin
    every = torch.arange(length, device=ends.device)
    for each, along in grouped.along.items():
        tensors[each] = tensors[each].index_select(along, (every + begin) % max(length, 1))
    made = call(offs=ends.contiguous(), **{name: _readable(tensor) for name, tensor in tensors.items()})
    if grouped.counted == "output":
        return made
    # Rows, or columns, of other groups: the kernel writes none of them.
    dim = 0 if name == "self" else 1
    own = (every < ends[-1]).unsqueeze(1 - dim)
    return made.where(own, 0).index_select(dim, (every - begin) % max(length, 1))


def _zeros(call: Call, output: Piece) -> Tensor:
    dtype = call["out_dtype"] or call["self"].dtype
    return call["self"].new_zeros(output.local, dtype=dtype)


def _readable(matrices: Tensor) -> Tensor:
    """The same matrices, stored so that kernels read them."""
    step = _ALIGNED // matrices.element_size()
    for dim, other in ((-1, -2), (-2, -1)):
        stride = matrices.stride(other)
        if matrices.stride(dim) == 1 and stride % step == 0 and stride >= max(1, matrices.shape[dim]):
            return matrices
    columns = matrices.shape[-1]
    return F.pad(matrices, (0, -columns % step))[..., :columns] if columns % step else matrices.contiguous()


RUNS: dict[str, Operator] = {"aten._grouped_mm": Operator(_run)}
