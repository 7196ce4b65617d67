"""Whatever can be called, as a module: its parameters must be the graph's, not constants inside it.

A function may reach modules through its closure, its globals, its defaults, `functools.partial` or by being a
method; they become children of the module that stands for it, under the names by which the function knows them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from inspect import unwrap
from typing import Any

from torch import nn
from torch.fx.proxy import _register_stack_trace_anchor

from ..errors import UsageError


class Function(nn.Module):
    """A module that calls a function, with the modules that the function uses as children."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function
        _register_stack_trace_anchor(unwrap(function))  # else torch keeps the lines of `forward`s alone
        for name, module in _modules_of(function):
            if module not in self._modules.values():
                self.add_module(_free_name(self, name), module)


def as_module(target: Any) -> nn.Module:
    if isinstance(target, nn.Module):
        return target
    if not callable(target):
        raise UsageError(f"cannot capture {target!r}: give an nn.Module or a function")
    return Function(target)


def name_of(target: Any) -> str:
    if isinstance(target, nn.Module):
        return type(target).__name__
    if isinstance(target, partial):
        return name_of(target.func)
    return getattr(target, "__qualname__", type(target).__name__).replace("<locals>.", "")


def _modules_of(function: Any) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(function, partial):
        yield from _among(enumerate(function.args))
        yield from _among(function.keywords.items())
        yield from _modules_of(function.func)
        return
    function = unwrap(function)
    yield from _among([("self", getattr(function, "__self__", None))])
    code = getattr(function, "__code__", None)
    if code is None:
        return
    used = [(name, function.__globals__.get(name)) for name in code.co_names]
    closed = [
        (name, cell.cell_contents)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
        if cell != type(cell)()
    ]
    yield from _among([*closed, *used, *enumerate(function.__defaults__ or ())])
    for _, value in (*closed, *used):
        if callable(value) and not isinstance(value, nn.Module) and value is not function:
            inner = getattr(value, "__module__", None) == getattr(function, "__module__", "")
            if inner and hasattr(value, "__code__"):
                yield from _modules_of(value)


def _among(values: Any) -> Iterator[tuple[str, nn.Module]]:
    for name, value in values:
        if isinstance(value, nn.Module):
            yield str(name), value


def _free_name(module: nn.Module, name: str) -> str:
    name = name if name.isidentifier() else f"module_{name}"
    while hasattr(module, name):
        name += "_"
    return name
