"""Operators that change the shape of a tensor in place, such as `unsqueeze_` and `transpose_`.

DTensor stores the global shape separately from the local tensor, and after such an operator leaves it unchanged
unless the placements change. Here each runs as the operator that returns the result, whose local tensor and spec the
DTensor then takes over.
"""

from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import return_and_correct_aliasing

from ..calls import packet_name, registered
from ._state import bridge


def handle(op: OpOverload) -> None:
    """Make DTensor run the operator so, unless it has no functional variant, or DTensor has a handler of
    its own. Rows do not help here: DTensor would leave the shape unchanged."""
    functional = _functional(op)
    if functional is not None and op not in DTensor._op_dispatcher._custom_op_handlers:
        DTensor._op_dispatcher._custom_op_handlers[op] = _handler(functional)
        bridge.handlers.append(op)


def remove_handlers() -> None:
    while bridge.handlers:
        DTensor._op_dispatcher._custom_op_handlers.pop(bridge.handlers.pop())


def _functional(op: OpOverload) -> OpOverload | None:
    """The overload with the same arguments of the operator without the underscore."""
    packet = registered(packet_name(op).removesuffix("_"))
    others = [getattr(packet, which) for which in packet.overloads()] if packet is not None else []
    return next((other for other in others if _arguments(other) == _arguments(op)), None)


def _arguments(op: OpOverload) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in op._schema.arguments]


def _handler(functional: OpOverload) -> Callable[..., Any]:
    def run(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = args[0]
        made = functional(*args, **kwargs)
        target._local_tensor, target._spec = made._local_tensor, made._spec
        return return_and_correct_aliasing(op, args, kwargs, target)

    return run
