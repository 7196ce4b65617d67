"""A program is traced as it runs when nobody traces it: asked whether it is being compiled, torch says no.

Programs ask to leave out what a compiler cannot follow, and might do something else instead. So the branch that is
captured is the one that runs; only where that cannot be traced does the program hear that it is being compiled.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Answer:
    """What `torch.compiler.is_compiling()` gives: no for the program, yes for torch itself."""

    def __init__(self) -> None:
        self.given = False

    def __bool__(self) -> bool:
        if sys._getframe(1).f_globals.get("__name__", "").split(".")[0] == "torch":
            return True
        self.given = True
        return False


@contextmanager
def as_if_eager(module: nn.Module, answer: Answer) -> Iterator[None]:
    """Within, the program of the module is told that it is not being compiled, each time it is called."""
    flags = [_flags()]

    def begin(*_: object) -> None:
        flags.append(_flags())
        _set_flags(answer, answer)

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
