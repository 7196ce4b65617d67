"""A program is traced as it runs eagerly: `torch.compiler.is_compiling()` returns False for it.

Programs call it to leave out what a compiler cannot trace, and might do something else instead. So the branch that is
captured is the one that runs; only where that cannot be traced does it return True for the program.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class IsCompiling:
    """The result of `torch.compiler.is_compiling()`: False for the program, True for torch itself."""

    def __init__(self) -> None:
        self.evaluated = False

    def __bool__(self) -> bool:
        if sys._getframe(1).f_globals.get("__name__", "").split(".")[0] == "torch":
            return True
        self.evaluated = True
        return False


@contextmanager
def as_if_eager(module: nn.Module, is_compiling: IsCompiling) -> Iterator[None]:
    """Within, `is_compiling()` returns False for the program of the module, each time it is called."""
    flags = [_flags()]

    def begin(*_: object) -> None:
        flags.append(_flags())
        _set_flags(is_compiling, is_compiling)

    def end(*_: object) -> None:
        _set_flags(*flags.pop())

    hooks = (
        module.register_forward_pre_hook(begin, prepend=True),
        module.register_forward_hook(end, always_call=True),
    )
    try:
        yield
    finally:
        _set_flags(*flags[0])
        for hook in hooks:
            hook.remove()


def _flags() -> tuple[Any, Any]:
    return torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag


def _set_flags(compiling: Any, exporting: Any) -> None:
    torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = compiling, exporting
