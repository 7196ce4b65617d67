"""A program of operator calls compiled by a backend of torch.compile.

Dynamo, which reads Python, is left out: a program already consists of calls of operators. Forward and backward are
compiled each by itself. A compiler that saw both would move calls from one to the other, and leave out what nothing
needs; on ranks whose programs differ it would do so differently, and then one waits for a collective that another has
not begun.
"""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import torch
from torch import fx

from ..errors import UsageError
from ._boxed import copy_of


def backend_of(name: str) -> Callable[..., Any]:
    """The backend of that name."""
    # Imports torch's whole compiler, which takes a second that `import shardwise` should not take.
    from torch._dynamo.backends.registry import list_backends, lookup_backend
    from torch._dynamo.exc import InvalidBackend

    try:
        return lookup_backend(name)
    except InvalidBackend:
        known = ", ".join(list_backends())
        raise UsageError(f"compile is {name!r}: use True, or the name of a backend, one of {known}") from None


class Compiled:
    """A program as a function of a list of its inputs, compiled when first run: once for where autograd keeps a record,
    and once for where it does not."""

    def __init__(self, program: fx.GraphModule, backend: Callable[..., Any]) -> None:
        self.program, self.backend = program, backend
        self._compiled: dict[bool, Callable[..., Any]] = {}

    def __call__(self, given: list[Any]) -> Any:
        recorded = torch.is_grad_enabled()
        if recorded not in self._compiled:
            self._compiled[recorded] = _of_list(self.backend(self.program, list(given)))
        return self._compiled[recorded](given)


def _of_list(run: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """What a backend made as a function of a list: AOTAutograd has one within, which frees each input after its use."""
    inner: Callable[..., Any] | None = run
    while inner is not None:
        if getattr(
            inner, "_boxed_call", False
        ):  # what wraps it looks the same, but takes the inputs one by one
            parameters = signature(inner, follow_wrapped=False).parameters.values()
            if all(parameter.kind != Parameter.VAR_POSITIONAL for parameter in parameters):
                return inner
        inner = getattr(inner, "__wrapped__", None)
    return lambda given: run(*given)


def first_results(program: fx.GraphModule, count: int) -> fx.GraphModule:
    """The program without what only its other results need."""
    graph = copy_of(program.graph)
    given = graph.output_node()
    given.args = (given.args[0][:count],)
    graph.eliminate_dead_code()
    return fx.GraphModule(program, graph)
