"""A call seen as clauses see it: its arguments by name, the shapes of its tensors, and which term speaks of which.

Every tensor argument of the operator's schema has one term in a clause, whether it is one tensor, a list of them or
absent. Dims that arguments name are counted from 0.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ..calls import Call, facts
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


def bind(call: Call, reading: Reading) -> Bound:
    """A call as the clauses of a rule with this reading see it."""
    arguments, outputs = call.arguments, call.outputs
    optional = _tensor_arguments(call)
    by_name: dict[str, list[int]] = {}
    for position, name in enumerate(call.tensor_names):
        by_name.setdefault(name, []).append(position)
    groups = [tuple(by_name.get(name, ())) for name in arguments if name in by_name or name in optional]
    inputs = [tuple(map(int, shape)) for shape in call.shapes]
    ndim = len((inputs if reading.dims_of == "input" else outputs)[0] or ()) if inputs and outputs else 0
    single, dims = _single_dims(call), facts(call.op).dims
    plain = {
        name: _normal_dims(value, ndim, name in single, reading.no_dims) if name in dims else _plain(value)
        for name, value in arguments.items()
        if name not in by_name
    }
    given = {name: GIVEN if name in by_name else None for name in optional if name in arguments}
    scope = Scope({**plain, **given}, inputs, outputs, reading.broadcast)
    return Bound(scope, tuple(groups), _output_groups(call, len(outputs)))


def _tensor_arguments(call: Call) -> set[str]:
    return {a.name for a in call.schema.arguments if "Tensor" in str(a.type)} if call.schema else set()


def _output_groups(call: Call, count: int) -> tuple[tuple[int, ...], ...]:
    """One term per return of the schema; a list of tensors is one term."""
    returns = [str(r.type) for r in call.schema.returns] if call.schema else []
    if len(returns) == 1 and returns[0].startswith("List"):
        return (tuple(range(count)),)
    return tuple((i,) for i in range(count))


def _single_dims(call: Call) -> set[str]:
    """Arguments that always name exactly one dim."""
    if call.schema is None:
        return set(facts(call.op).dims)
    return {a.name for a in call.schema.arguments if str(a.type) == "int"}


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
