"""Any callable as a module, so that its parameters become inputs of the graph, not constants inside it.

A function may reach modules through its closure, its globals, its defaults, `functools.partial`, by being a method,
or through other functions of its file; they become children of the module that wraps it, under the names by
which the function knows them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import signature, unwrap
from types import CodeType, NoneType
from typing import Any

import torch
from torch import nn

from ..errors import UsageError, require
from ._versions import keep_lines_of


class Function(nn.Module):
    """A module that calls a function, with the modules that the function uses as children."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function if _is_in_python(function) else _in_python(function)
        keep_lines_of(unwrap(function))
        for name, module in _modules_of(function, set()):
            if module not in self._modules.values():
                self.add_module(_free_name(self, name), module)


def _is_in_python(function: Callable[..., Any]) -> bool:
    return hasattr(function.func if isinstance(function, partial) else function, "__code__")


def _in_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function written in C, such as `torch.matmul`, or a callable object, as a Python function that can be
    traced."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    with suppress(ValueError):  # most functions written in C have no signature
        forward.__signature__ = signature(function)  # type: ignore[attr-defined]
    return forward


def as_module(target: Any) -> nn.Module:
    if isinstance(target, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise UsageError(
            "a program of TorchScript cannot be captured: give the Python module or function that it was made of"
        )
    if isinstance(target, nn.Module):
        return getattr(target, "_orig_mod", target)  # the argument of `torch.compile`
    if not callable(target):
        raise UsageError(f"cannot capture {target!r}: give an nn.Module or a function")
    return Function(target)


def name_of(target: Any) -> str:
    if isinstance(target, nn.Module):
        return type(as_module(target)).__name__
    if isinstance(target, partial):
        return name_of(target.func)
    if isinstance(target, torch.library.CustomOpDef):
        return str(target._opoverload)
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target)
    name = getattr(target, "__qualname__", type(target).__name__).replace("<locals>.", "")
    return name.removeprefix("_VariableFunctionsClass.")  # which is where torch has `torch.mm` and its like


def _modules_of(function: Any, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, partial):
        yield from _among(enumerate(function.args))
        yield from _among(function.keywords.items())
        yield from _modules_of(function.func, seen)
        return
    function = unwrap(function)
    yield from _among([("self", getattr(function, "__self__", None))])
    if not hasattr(function, "__code__"):
        return
    reached = [*_closed_over(function), *_globals(function)]
    yield from _among([*reached, *enumerate(function.__defaults__ or ())])
    for _, value in reached:
        if getattr(value, "__module__", None) == function.__module__ and hasattr(value, "__code__"):
            yield from _modules_of(value, seen)


def _closed_over(function: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _globals(function: Any) -> Iterator[tuple[str, Any]]:
    for code in _codes(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _among(values: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, nn.Module]]:
    for name, value in values:
        if isinstance(value, nn.Module):
            yield str(name), as_module(value)


def _free_name(module: nn.Module, name: str) -> str:
    name = name if name.isidentifier() else f"module_{name}"
    while hasattr(module, name):
        name += "_"
    return name


def call_arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, validated. A bare tensor is a mistake: it would be iterated row by row."""
    require(args, (tuple, list), "args", "a tuple of the call's arguments, such as (x,)")
    require(kwargs, (Mapping, NoneType), "kwargs", "a dict of the call's keyword arguments")
    return tuple(args), dict(kwargs or {})
