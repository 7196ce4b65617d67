"""Overloads by their names."""

import importlib
from typing import Any

import torch

from ..errors import UsageError

# Operators that are registered when a module is first imported: torch's, and ours.
_REGISTERED_LATE = {"torch_nn": "torch.nn.modules.linear_cross_entropy", "shardwise": "shardwise.graph"}


def overload(name: str) -> torch._ops.OpOverload:
    """The registered overload `aten.mm.default`."""
    namespace, _, rest = name.partition(".")
    packet, _, which = rest.partition(".")
    try:
        return getattr(getattr(operators(namespace), packet), which or "default")
    except AttributeError:
        raise UsageError(
            f"no operator is registered as {name!r} in this process: import the module that registers it"
        ) from None


def operators(namespace: str) -> Any:
    """`torch.ops.NAMESPACE` with all that is registered there."""
    if namespace in _REGISTERED_LATE:
        importlib.import_module(_REGISTERED_LATE[namespace])
    return getattr(torch.ops, namespace)
