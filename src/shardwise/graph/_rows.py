"""Which rows of a tensor count: what is noted of the padded forms of selections (`_selections.py`)."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary


@dataclass(frozen=True, eq=False)
class Rows:
    """Which rows of a tensor count: those along `dim` where the mask, of one dim, is true, `count` of them. Selections
    by the same mask have the same `key`."""

    mask: Tensor
    count: Any
    key: int
    dim: int = 0

    @property
    def size(self) -> int:
        return self.mask.shape[0]

    def along(self, dim: int) -> "Rows":
        return replace(self, dim=dim)

    def holds(self, tensor: Tensor) -> Tensor:
        """The mask, with the dims that a tensor has."""
        return self.mask.reshape([self.size if dim == self.dim else 1 for dim in range(tensor.dim())])

    def filled(self, tensor: Tensor, value: Any) -> Tensor:
        """The tensor with a value in the rows that do not count."""
        return torch.where(self.holds(tensor), tensor, torch.full((), value, dtype=tensor.dtype))


_ROWS = WeakIdKeyDictionary()


def rows_of(value: Any) -> Rows | None:
    """Which rows of a tensor count, where not all do."""
    found: Rows | None = _ROWS.get(value) if isinstance(value, Tensor) else None
    return found


def note_rows(made: Any, rows: Rows | None) -> None:
    """Of the tensors that were made these rows count."""
    if rows is not None:
        for leaf in pytree.tree_leaves(made):
            if isinstance(leaf, Tensor):
                _ROWS[leaf] = rows
