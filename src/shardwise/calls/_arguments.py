"""The arguments of a call: by name, as text, on meta tensors."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError, first_line

Shape = tuple[int, ...]


def is_tensor(value: Any) -> bool:
    """Tensors, and stand-ins that have a shape and a dtype."""
    return isinstance(value, Tensor) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def argument_text(value: Any) -> str:
    """A value that a call is given, as text: tensors by dtype and shape, `float32[4, 6]`."""
    if is_tensor(value):
        return f"{str(value.dtype)[6:]}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(argument_text, value))}]"
    return repr(value)


def call_text(args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    """What a call is given, as text: `(float32[4, 6], dim=1)`."""
    given = [*map(argument_text, args), *(f"{name}={argument_text(v)}" for name, v in kwargs.items())]
    return f"({', '.join(given)})"


def named_arguments(op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments by name, defaults filled in."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        try:
            bound = inspect.signature(op).bind(*args, **kwargs)
            bound.apply_defaults()
            return dict(bound.arguments)
        except (TypeError, ValueError):
            return {**{f"arg{i}": value for i, value in enumerate(args)}, **kwargs}
    names = [a.name for a in schema.arguments if not a.kwarg_only]
    if len(args) > len(names):
        raise UsageError(f"{op} takes {len(names)} positional arguments, but {len(args)} were given")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    values = {}
    for argument in schema.arguments:
        if argument.is_out:
            continue
        if argument.name in given:
            values[argument.name] = given[argument.name]
        elif argument.has_default_value():
            values[argument.name] = argument.default_value
        else:
            raise UsageError(f"{op} was given no {argument.name!r}")
    return values


def output_shapes(op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Shape | None]:
    """Shapes of the call's outputs, from a run on meta tensors; where the operator has no such kernel, on copies."""
    wants_out = isinstance(op, torch._ops.OpOverload)
    given = {k: v for k, v in kwargs.items() if k != "out" or wants_out}
    with must_run(str(op), args, kwargs):
        try:
            result = op(*map(on_meta, args), **{k: on_meta(v) for k, v in given.items()})
        except NotImplementedError:
            result = op(*map(_copied, args), **{k: _copied(v) for k, v in given.items()})
    return [tuple(o.shape) if isinstance(o, Tensor) else None for o in flat_outputs(result)]


@contextmanager
def must_run(name: str, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Tell in one sentence that a call of an operator does not run."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise UsageError(f"{name}{call_text(args, kwargs)} does not run: {first_line(error)}") from error


def on_meta(value: Any) -> Any:
    """Tensors as meta tensors, alone or in lists, and the device to match; other values as they are."""
    if isinstance(value, torch.device):
        return torch.device("meta")
    if is_tensor(value):
        return torch.empty(tuple(value.shape), dtype=value.dtype, device="meta")
    return [on_meta(v) for v in value] if isinstance(value, list | tuple) else value


def _copied(value: Any) -> Any:
    """Tensors as copies of them, alone or in lists; other values as they are."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return [_copied(v) for v in value] if isinstance(value, list | tuple) else value


def flat_outputs(result: Any) -> list[Any]:
    """What a call returns, one by one: tensors in lists and tuples in their order."""
    if type(result) is Tensor:
        return [result]
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in flat_outputs(part)]
    return [result]
