"""A call seen as clauses see it: its arguments by name, the shapes of its tensors, and which term speaks of which.

Every tensor argument of the operator's schema has one term in a clause, whether it is one tensor, a list of them or
absent. Dims that arguments name are counted from 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..calls import Shape, facts, is_tensor, named_arguments, output_shapes
from ._expression import Scope


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


@dataclass(frozen=True)
class Bound:
    scope: Scope
    groups: tuple[tuple[int, ...], ...]
    output_groups: tuple[tuple[int, ...], ...]


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
    single, dims = _single_dims(op), facts(op).dims
    plain = {
        name: _normal_dims(value, ndim, name in single, reading.no_dims) if name in dims else _plain(value)
        for name, value in arguments.items()
        if not _holds_tensors(value)
    }
    given = {
        name: GIVEN if _holds_tensors(arguments[name]) else None for name in optional if name in arguments
    }
    scope = Scope({**plain, **given}, inputs, outputs, reading.broadcast)
    return Bound(scope, tuple(groups), _output_groups(op, len(outputs)))


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
    return {a.name for a in schema.arguments if str(a.type) == "int"} if schema else set(facts(op).dims)


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
