"""Names of operators, and the operators they name.

`torch.mm`, `aten.mm.default`, `torch.nn.functional.layer_norm` and `namespace::name` are all names; `op_name`
gives the one that reads best for a given operator.
"""

import difflib
import functools
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from ..errors import UsageError

# Operators that are registered when a module is first imported: torch's, from 2.13, and ours.
_REGISTERED_LATE = {"torch_nn": "torch.nn.modules.linear_cross_entropy", "shardwise": "shardwise.graph"}

# Where torch itself keeps operators: the last are those that `torch.nn` is written with.
TORCH_NAMESPACES = ("aten", "prims", "torch_nn")


def operator(op: Callable[..., Any]) -> Callable[..., Any]:
    """For the result of `torch.library.custom_op`, the overload that it registered; any other unchanged."""
    return op._opoverload if isinstance(op, torch.library.CustomOpDef) else op


def op_name(op: Callable[..., Any]) -> str:
    op = operator(op)
    if isinstance(op, OpOverload | OpOverloadPacket):
        return str(op)
    name = getattr(op, "__name__", None) or type(op).__name__
    return _names_of_functions().get(id(op)) or name


def packet_name(op: Callable[..., Any]) -> str:
    """`aten.embedding`: the operator's name without its overload."""
    schema = getattr(op, "_schema", None)
    return op_name(op) if schema is None else schema.name.replace("::", ".")


@functools.cache
def _names_of_functions() -> dict[int, str]:
    """torch's public functions and methods by identity, so that a builtin prints as `torch.mm`."""
    names: dict[int, str] = {}
    for module in ("torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft"):
        for name, value in vars(import_module(module)).items():
            if callable(value) and not isinstance(value, type) and not name.startswith("_"):
                names.setdefault(id(value), f"{module}.{name}")
    for name in dir(torch.Tensor):
        if not name.startswith("_") and callable(method := getattr(torch.Tensor, name)):
            names.setdefault(id(method), f"torch.Tensor.{name}")
    return names


def short_name(name: str) -> str:
    """The name without `aten.` or `torch.`, which most have."""
    return name.removeprefix("aten.").removeprefix("torch.")


def op_source(name: str) -> str:
    """An overload as Python source, where `aten` is `torch.ops.aten`."""
    return name if name.startswith("aten.") else f"torch.ops.{name}"


def resolve_op(name: str) -> Callable[..., Any]:
    """The operator that `name` names; a `UsageError` suggests what may have been meant."""
    if not isinstance(name, str):
        raise UsageError(f"unknown op {name!r}: use a name such as torch.mm or aten.mm.default")
    if "::" in name:
        return _registered(name.replace("::", "."), name)
    first = name.split(".")[0]
    if first != "torch" and not hasattr(torch, first) and name.count("."):
        return _registered(name, name)
    dotted = name if first == "torch" else f"torch.{name}"
    found: Any = torch
    for part in dotted.split(".")[1:]:
        parent, found = found, getattr(found, part, None)
        if found is None:
            raise UsageError(f"unknown op {name!r}{_suggestion(part, parent)}")
    if not callable(found):
        raise UsageError(f"{name!r} is a {type(found).__name__}, not an operator")
    return found


def overload(name: str) -> OpOverload:
    """The registered overload `aten.mm.default`; that is also what `aten.mm` means."""
    found = registered(name)
    if isinstance(found, OpOverloadPacket):
        found = getattr(found, "default", None)
    if not isinstance(found, OpOverload):
        raise UsageError(
            f"no operator is registered as {name!r} in this process: import the module that registers it"
        )
    return found


def _registered(dotted: str, name: str) -> Callable[..., Any]:
    found = registered(dotted)
    if found is None:
        namespace, packet, *_ = dotted.split(".")
        raise UsageError(f"unknown op {name!r}{_suggestion(packet, _operators(namespace))}")
    return found


def registered(name: str) -> Any:
    """The packet `aten.mm` or the overload `aten.mm.default`; None if it is not registered."""
    namespace, _, rest = name.partition(".")
    packet, _, which = rest.partition(".")
    found = getattr(_operators(namespace), packet, None)
    return getattr(found, which, None) if which else found


def registered_as(function: str) -> Any:
    """The ATen packet that has the name of a function of torch; None for another function."""
    path, _, name = function.rpartition(".")
    return registered(f"aten.{name}") if path.split(".")[0] == "torch" else None


def _operators(namespace: str) -> Any:
    """`torch.ops.NAMESPACE` with all that is registered there."""
    module = _REGISTERED_LATE.get(namespace)
    if module is not None and find_spec(module) is not None:
        import_module(module)
    return getattr(torch.ops, namespace)


def _suggestion(part: str, parent: Any) -> str:
    # A namespace of operators lists those alone that were used; most are named as functions of torch are.
    close = difflib.get_close_matches(part, {*dir(parent), *dir(torch)}, n=5)
    known = next((name for name in close if hasattr(parent, name)), None)
    return f": did you mean {known!r}?" if known else ": use a name such as torch.mm or aten.mm.default"
