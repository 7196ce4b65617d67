"""Results of classes that torch cannot flatten: converted to plain containers of their tensors.

Models return objects of their own, a cache of keys and values, say. For the graph they are the tensors in them,
named by the attributes that lead there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ._numbers import Number


@contextmanager
def opened_results(module: nn.Module) -> Iterator[None]:
    """Within, the module returns plain containers instead of objects of unknown classes."""
    hook = module.register_forward_hook(lambda _module, _args, result: opened(result))
    try:
        yield
    finally:
        hook.remove()


_LEAVES = (Tensor, nn.Module, type, torch.SymInt, torch.SymFloat, torch.SymBool)


def opened(result: Any) -> Any:
    return pytree.tree_map(lambda leaf: _open(leaf, ()), result)


def _open(leaf: Any, above: tuple[Any, ...]) -> Any:
    if isinstance(leaf, Number):
        return leaf.tensor
    if isinstance(
        leaf, (Tensor, nn.Module, type, torch.SymInt, torch.SymFloat, torch.SymBool)
    ) or not hasattr(leaf, "__dict__"):
        return leaf
    if any(leaf is outer for outer in above):  # it leads back to itself
        return None
    attributes = {}
    for name, value in vars(leaf).items():
        part = pytree.tree_map(lambda inner: _open(inner, (*above, leaf)), value)
        if any(isinstance(inner, Tensor) for inner in pytree.tree_leaves(part)):
            attributes[name] = part
    return attributes
