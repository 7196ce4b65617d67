"""The micro-batches of a step: arguments like those that were captured, other ones for every pass."""

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


def of_pass(given: Any, number: int) -> Any:
    """The arguments of a pass: those of the first are the given ones, those of others have each tensor's elements moved
    on along its last dim. So they have the same values, in other places."""
    return pytree.tree_map(lambda leaf: _moved_on(leaf, number), given)


def _moved_on(leaf: Any, number: int) -> Any:
    long = [dim for dim, size in enumerate(leaf.shape) if size > 1] if isinstance(leaf, Tensor) else []
    if not number or not long:
        return leaf
    return leaf.detach().roll(number, long[-1]).requires_grad_(leaf.requires_grad)
