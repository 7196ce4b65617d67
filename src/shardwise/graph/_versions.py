"""Where versions of torch differ in what capture uses: each difference once, by what that torch has."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._library import simple_registry

try:
    from torch.fx.proxy import _register_stack_trace_anchor
except ImportError:  # torch 2.11 and 2.12
    _register_stack_trace_anchor = None


def keep_lines_of(function: Callable[..., Any]) -> None:
    """Have the lines of a function in the stack traces of its nodes: torch keeps those of `forward`s alone, and without
    this those of its caller stand for them. Before torch 2.13 there is no way to."""
    if _register_stack_trace_anchor is not None:
        _register_stack_trace_anchor(function)


def met_a_number(error: AssertionError) -> bool:
    """Whether export ended at a number that the program takes from a tensor and compares. Before torch 2.13 what solves
    constraints fails there: it knows symbols of shapes alone."""
    return "created by constraints solver" in str(error)


@contextmanager
def matrix_checks_without_effect() -> Iterator[None]:
    """Within, the check that a factorisation of a matrix succeeded is not kept for its effect, which is to raise.

    From torch 2.13 on it has one, and would be ordered by tokens that go in and out of the graph.
    """
    check = torch.ops.aten._linalg_check_errors.default
    holder = getattr(simple_registry.singleton.find(check._name), "effect", None)
    if holder is None:
        yield
        return
    before = holder.effect
    holder.register(None)
    try:
        yield
    finally:
        holder.register(before)
