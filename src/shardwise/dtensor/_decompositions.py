"""Decompositions that DTensor decides by, traced once for each placement of their inputs.

Where DTensor has no rule, it traces the operator's decomposition with every placement of the inputs. An operator inside
that has no rule either is decided in the same way, for each placement of the outer one: attention with a mask, of 375
placements, is traced 186,000 times and takes two minutes of CPU at its first call. What one trace gives depends on the
operator, its arguments and their placements alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import getattr_static
from typing import Any

from torch._ops import OpOverload
from torch.distributed.tensor._decompositions import DecompShardingStrategy
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSchema
from torch.utils import _pytree as pytree

from ._versions import traced

_TRACE = "_propagate_through_decomp"


def has_decomposition(op: OpOverload) -> bool:
    """Whether an operator has a decomposition by which DTensor can decide."""
    return bool(DecompShardingStrategy.has_decomp(op))


@contextmanager
def traced_once() -> Iterator[None]:
    """Within, DTensor decides as ever, but remembers what each trace gave. Its rules must stay as they are."""
    original, trace = getattr_static(DecompShardingStrategy, _TRACE), getattr(DecompShardingStrategy, _TRACE)
    remembered: dict[str, dict[Any, tuple[Any, Exception | None]]] = {}
    last: list[Any] = [
        None,
        {},
    ]  # a schema, and what is remembered of its arguments: it comes for all placements

    def once(*given: Any) -> Any:
        schema, placements, mesh = traced(given)
        if schema is not last[0]:
            last[:] = schema, remembered.setdefault(_arguments(schema), {})
        known, key = last[1], (placements, mesh)
        if key not in known:
            try:
                known[key] = trace(*given), None
            except Exception as error:
                known[key] = None, error
        result, raised = known[key]
        if raised is not None:
            raise raised.with_traceback(None)
        return result

    setattr(
        DecompShardingStrategy, _TRACE, staticmethod(once) if isinstance(original, staticmethod) else once
    )
    try:
        yield
    finally:
        setattr(DecompShardingStrategy, _TRACE, original)


def _arguments(schema: OpSchema) -> str:
    """An operator and its arguments, whatever their placements."""

    def text(leaf: Any) -> str:
        return repr(leaf.tensor_meta if isinstance(leaf, DTensorSpec) else leaf)

    return f"{schema.op}{pytree.tree_map(text, (schema.args_schema, schema.kwargs_schema))}"
