"""Fake tensors instead of a model's state and arguments: capture uses shapes and dtypes and no memory.

They are fake CPU tensors whatever the model's own device is, meta included: meta tensors make autograd drop
gradients silently, and fake tensors of a device that torch was not built for abort the process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree

from ..errors import UsageError

# Tensors of up to this many elements whose values follow from the program alone keep their values: sizes of feature
# maps, lengths, offsets. Torch itself keeps one element.
KNOWN = 4096


@contextmanager
def known_values() -> Iterator[None]:
    """Within, small tensors that a program computes from numbers keep their values, so that it can read them."""
    before = [module.CONSTANT_NUMEL_LIMIT for module in (fake_tensor, proxy_tensor)]
    fake_tensor.CONSTANT_NUMEL_LIMIT = proxy_tensor.CONSTANT_NUMEL_LIMIT = KNOWN
    try:
        yield
    finally:
        fake_tensor.CONSTANT_NUMEL_LIMIT, proxy_tensor.CONSTANT_NUMEL_LIMIT = before


def without_memory() -> FakeTensorMode:
    """A mode in which new tensors have shapes and dtypes, and no values."""
    return FakeTensorMode()


def fake(mode: FakeTensorMode, tensor: Tensor, requires_grad: bool) -> Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise UsageError(f"a {kind} tensor cannot be captured: give a dense one")
    with mode:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        return made.requires_grad_(requires_grad)


def fake_arguments(mode: FakeTensorMode, arguments: Any, training: bool) -> Any:
    """The arguments with each tensor replaced by one of its own, also where the same tensor is given twice."""

    def replace(leaf: Any) -> Any:
        return fake(mode, leaf, training and leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(replace, arguments)


def make_state_fake(mode: FakeTensorMode, module: nn.Module, training: bool) -> None:
    """Exchange the module's parameters and buffers for fake ones, and put it in eval mode unless `training`.

    Tied tensors stay tied. Plain attributes that are tensors are constants of the program.
    """
    made: dict[int, Tensor] = {}

    def replace(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            grad = training and tensor.requires_grad
            new = fake(mode, tensor, grad)
            made[id(tensor)] = nn.Parameter(new, grad) if isinstance(tensor, nn.Parameter) else new
        return made[id(tensor)]

    for child in module.modules():
        child.training = child.training and training
        for name, tensor in _unregistered(child).items():
            # One without values must be an input of the graph.
            if tensor.is_meta or isinstance(tensor, FakeTensor):
                del child.__dict__[name]
                child._buffers[name] = tensor
            else:
                child.__dict__[name] = tensor.detach().cpu()
        for own in (child._parameters, child._buffers):
            own.update({name: replace(tensor) for name, tensor in own.items() if tensor is not None})


def _unregistered(module: nn.Module) -> dict[str, Tensor]:
    return {name: held for name, held in module.__dict__.items() if isinstance(held, Tensor)}
