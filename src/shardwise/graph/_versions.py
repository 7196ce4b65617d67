"""Where versions of torch differ in what capture uses: each difference once, by what that torch has."""

from collections.abc import Callable
from typing import Any

try:
    from torch.fx.proxy import _register_stack_trace_anchor
except ImportError:  # torch 2.11 and 2.12
    _register_stack_trace_anchor = None


def keep_lines_of(function: Callable[..., Any]) -> None:
    """Have the lines of a function in the stack traces of its nodes: torch keeps those of `forward`s alone, and without
    this those of its caller stand for them. Before torch 2.13 there is no way to."""
    if _register_stack_trace_anchor is not None:
        _register_stack_trace_anchor(function)
