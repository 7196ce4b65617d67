"""Overloads by their names."""

import importlib

import torch

from ..errors import UsageError

# What torch registers when it is first used.
_REGISTERED_LATE = {"torch_nn": "torch.nn.modules.linear_cross_entropy"}


def overload(name: str) -> torch._ops.OpOverload:
    """The registered overload `aten.mm.default`."""
    namespace, _, rest = name.partition(".")
    packet, _, which = rest.partition(".")
    if namespace in _REGISTERED_LATE:
        importlib.import_module(_REGISTERED_LATE[namespace])
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), which or "default")
    except AttributeError:
        raise UsageError(
            f"no operator is registered as {name!r} in this process: import the module that registers it"
        ) from None
