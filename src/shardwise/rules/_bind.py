"""A call seen as clauses see it: its arguments by name, the shapes of its tensors, and which term speaks of which.

Every tensor argument of the operator's schema has one term in a clause, whether it is one tensor, a list of them or
absent. Dims that arguments name are counted from 0.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import UsageError, first_line
from ._expression import Scope, Shape


@dataclass(frozen=True)
class Reading:
    """How an operator means its arguments: `dims_of` tells of which tensor the dims that it names are (unsqueeze
    means the output's), `no_dims` what it means to name none (sum: all, flip: none), `broadcast` whether operands
    broadcast to the output."""

    dims_of: Literal["input", "output"] = "input"
    no_dims: Literal["all", "none"] = "all"
    broadcast: bool = False


# What a tensor argument is in conditions: `weight is None` or not.
GIVEN = "given"

DIM_ARGUMENTS = ("dim", "dims", "dim0", "dim1", "dim2", "dimension", "axis", "axis0", "axis1")


@dataclass(frozen=True)
class Bound:
    scope: Scope
    groups: tuple[tuple[int, ...], ...]
    output_groups: tuple[tuple[int, ...], ...]


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


def bind(
    op: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    reading: Reading,
    outputs: Sequence[Shape | None] | None = None,
) -> Bound:
    """Bind a call; `outputs` are the shapes of its outputs, found on meta tensors where not given."""
    arguments = named_arguments(op, args, kwargs)
    tensors: list[Any] = []
    groups: list[tuple[int, ...]] = []
    optional = _tensor_arguments(op)
    for name, value in arguments.items():
        if is_tensor(value):
            groups.append((len(tensors),))
            tensors.append(value)
        elif isinstance(value, list | tuple) and any(is_tensor(v) for v in value):
            inside = [v for v in value if is_tensor(v)]
            groups.append(tuple(range(len(tensors), len(tensors) + len(inside))))
            tensors += inside
        elif name in optional:
            groups.append(())
    inputs = [tuple(int(s) for s in t.shape) for t in tensors]
    if outputs is None:
        outputs = output_shapes(op, args, kwargs)
    ndim = len((inputs if reading.dims_of == "input" else outputs)[0] or ()) if inputs and outputs else 0
    single = _single_dims(op)
    plain = {
        name: _normal_dims(value, ndim, name in single, reading.no_dims)
        if name in DIM_ARGUMENTS
        else _plain(value)
        for name, value in arguments.items()
        if not _holds_tensors(value)
    }
    given = {
        name: GIVEN if _holds_tensors(arguments[name]) else None for name in optional if name in arguments
    }
    scope = Scope({**plain, **given}, inputs, outputs, reading.broadcast)
    return Bound(scope, tuple(groups), _output_groups(op, len(outputs)))


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


def _tensor_arguments(op: Callable[..., Any]) -> set[str]:
    schema = getattr(op, "_schema", None)
    return {a.name for a in schema.arguments if "Tensor" in str(a.type)} if schema else set()


def _output_groups(op: Callable[..., Any], count: int) -> tuple[tuple[int, ...], ...]:
    """One term per return of the schema; a list of tensors is one term."""
    schema = getattr(op, "_schema", None)
    returns = [str(r.type) for r in schema.returns] if schema else []
    if len(returns) == 1 and returns[0].startswith("List"):
        return (tuple(range(count)),)
    return tuple((i,) for i in range(count))


def _holds_tensors(value: Any) -> bool:
    return is_tensor(value) or (isinstance(value, list | tuple) and any(is_tensor(v) for v in value))


def _single_dims(op: Callable[..., Any]) -> set[str]:
    """Arguments that always name exactly one dim."""
    schema = getattr(op, "_schema", None)
    return {a.name for a in schema.arguments if str(a.type) == "int"} if schema else set(DIM_ARGUMENTS)


def _normal_dims(value: Any, ndim: int, single: bool, no_dims: str) -> Any:
    """Dims counted from 0: a number where there is always one, else a tuple; none at all as the operator means it."""
    if type(value) is int:
        dim = value + ndim if value < 0 else value
        return dim if single else (dim,)
    if value is None or not value:
        return tuple(range(ndim)) if no_dims == "all" else ()
    return tuple(v + ndim if v < 0 else v for v in value)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
