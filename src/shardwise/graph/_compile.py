"""A function of tensors compiled by a backend of torch.compile, forward and backward.

Dynamo, which reads Python, is left out: the function already consists of calls of operators. AOTAutograd traces it with
the gradients of its inputs, so that the compiler sees both, and which tensors live only from one to the other.
"""

from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

from torch import Tensor, fx

from ..errors import UsageError


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


def compiled(
    function: Callable[..., Any], results: int, inputs: Sequence[Tensor], backend: Callable[..., Any]
) -> Callable[..., Any]:
    """The function, which returns so many tensors, for inputs like these."""

    def program(*given: Tensor) -> Any:
        return function(*given)

    graph = fx.Graph()
    call = graph.call_function(program, tuple(graph.placeholder(f"input_{i}") for i in range(len(inputs))))
    graph.output(tuple(graph.call_function(getitem, (call, place)) for place in range(results)))
    return backend(fx.GraphModule({}, graph), list(inputs))
