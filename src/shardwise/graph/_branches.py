"""Branches on tensor values by `torch.cond`: both are computed, and the results of one are taken.

A graph has no control flow. `torch.cond` promises that its branches only compute, so computing both changes nothing but
the price. The branch that is not taken may divide by zero: its gradients are kept from the operands.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


@contextmanager
def both_branches(notes: list[str]) -> Iterator[None]:
    """Within, `torch.cond` computes both branches; `notes` say so."""

    def cond(
        pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()
    ) -> Any:
        if not isinstance(pred, Tensor):
            return true_fn(*operands) if pred else false_fn(*operands)
        note = "both branches of torch.cond are computed, and the results of one are taken"
        if note not in notes:
            notes.append(note)
        holds = pred.reshape(())
        yes = true_fn(*_differentiated_if(holds, operands))
        no = false_fn(*_differentiated_if(~holds, operands))
        return pytree.tree_map(lambda a, b: torch.where(holds, a, b) if isinstance(a, Tensor) else a, yes, no)

    with _replaced(cond):
        yield


@contextmanager
def branches_as_taken() -> Iterator[None]:
    """Within, `torch.cond` runs the branch that is taken, call by call, and not through torch's compiler."""

    def cond(
        pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()
    ) -> Any:
        return (true_fn if pred else false_fn)(*operands)

    with _replaced(cond):
        yield


@contextmanager
def _replaced(cond: Callable[..., Any]) -> Iterator[None]:
    before, torch.cond = torch.cond, cond
    try:
        yield
    finally:
        torch.cond = before


def _differentiated_if(holds: Tensor, operands: Sequence[Any]) -> Any:
    """The operands, whose gradients are zero, and not what a branch makes of zero, where it is not taken."""

    def guarded(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.requires_grad:
            return leaf
        return torch.where(holds, leaf, leaf.detach())

    return pytree.tree_map(guarded, tuple(operands))
