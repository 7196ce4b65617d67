"""Registering our rules with DTensor: `register(rule)`, `extend(rule)`, and `unregister` to undo it.

A rule is registered by PyTorch's `register_single_dim_strategy`. PyTorch passes a strategy function the shapes of
a call but not the mesh, and allows or forbids uneven shards for an operator as a whole, while each of our rows
says for which shards it holds. So the expansion of our rules to the mesh is ours: it sees the mesh, and drops a
row exactly where its shards do not fit. To PyTorch alone, a rule has the rows that hold for any shards.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import TensorMeta
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor._ops.single_dim_strategy import _ShardingPlaceholder

from ..calls import is_tensor, leaves, overload, with_leaves
from ..errors import UsageError
from ..placements import AnyShard, Row
from ._hooks import refresh
from ._state import MISSING, Registered, RuleInfo, RuleLike, bridge
from ._versions import register_strategy, uneven_allowed


def register(rule: RuleLike) -> None:
    """Make DTensor shard an operator by a rule, instead of its own if it has one.

    Rows that need a local form are left out: DTensor runs the operator itself on the local tensors.
    """
    op = _free(rule)
    propagator = DTensor._op_dispatcher.sharding_propagator
    before = _taken(
        op,
        propagator.op_single_dim_strategy_funcs,
        propagator.op_to_schema_info_for_single_dim_strategy,
        propagator.op_strategy_funcs,
        propagator.op_to_rules,
        propagator.op_to_schema_info,
    )
    bridge.rules[op] = Registered(rule, before)
    register_strategy(op, schema_info(op), _strategy_function(rule))
    propagator.op_single_dim_strategy_funcs[op] = _info(rule, op)
    refresh()


def extend(rule: RuleLike, *, replaces: bool = False) -> None:
    """Make DTensor shard an operator by its own rule or by ours, whichever communicates less; `replaces` makes it our
    rule alone."""
    op = _free(rule)
    propagator = DTensor._op_dispatcher.sharding_propagator
    before = _taken(op, propagator.op_to_schema_info, propagator.op_to_schema_info_for_single_dim_strategy)
    bridge.rules[op] = Registered(rule, before, replaces)
    # Our decisions may depend on arguments that DTensor's do not.
    propagator.op_to_schema_info[op] = schema_info(op)
    bridge.extensions[op] = _info(rule, op)
    refresh()


def _free(rule: RuleLike) -> OpOverload:
    """The rule's operator, if no other rule is registered for it."""
    op = _overload(rule.op)
    if op in bridge.rules:
        raise UsageError(
            f"operator {op} is already registered by rule {bridge.rules[op].rule.name!r}: "
            f"unregister that before registering rule {rule.name!r}"
        )
    return op


def _taken(op: OpOverload, *tables: dict[Any, Any]) -> tuple[tuple[dict[Any, Any], Any], ...]:
    """The entries of DTensor's tables for an operator, removed from them."""
    return tuple((table, table.pop(op, MISSING)) for table in tables)


def _info(rule: RuleLike, op: OpOverload) -> RuleInfo:
    rows = _rows_function(rule, op)
    left = getattr(rule, "rows_left", None) or (lambda call: rows(call.args, call.kwargs, call.outputs))
    return RuleInfo(_strategy_function(rule), rows=rows, left=left, **uneven_allowed(RuleInfo))


def unregister(rule: RuleLike | OpOverload | str) -> None:
    """Restore what DTensor had for an operator before `register`."""
    op = _overload(rule if isinstance(rule, OpOverload | str) else rule.op)
    if op not in bridge.rules:
        raise UsageError(f"operator {op} is not registered: nothing to undo")
    for table, value in bridge.rules.pop(op).before:
        table.pop(op, None)
        if value is not MISSING:
            table[op] = value
    bridge.extensions.pop(op, None)
    refresh()


def registered() -> dict[str, str]:
    """The operators that rules are registered for, with the rules' names."""
    return {str(op): entry.rule.name for op, entry in bridge.rules.items()}


def _overload(op: Any) -> OpOverload:
    if isinstance(op, OpOverload):
        return op
    if "." not in str(op):
        raise UsageError(f"{op!r} does not name an operator: give an overload such as 'aten.mm.default'")
    return overload(str(op))


def schema_info(op: OpOverload) -> RuntimeSchemaInfo:
    """Which arguments must be part of the keys of DTensor's caches: all that are not tensors."""
    arguments = op._schema.arguments
    static = [
        (position, argument)
        for position, argument in enumerate(arguments)
        if "Tensor" not in str(argument.type)
    ]
    positional = [position for position, argument in static if not argument.kwarg_only]
    return RuntimeSchemaInfo(
        static_argnum=min(positional, default=100),
        static_kwargkey=[argument.name for _, argument in static] or None,
        needs_pytree=any("List[" in str(a.type) and "Tensor" in str(a.type) for a in arguments),
    )


def _as_tensor(leaf: Any) -> Any:
    """A meta tensor for PyTorch's tensor metadata."""
    if not isinstance(leaf, TensorMeta):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device="meta")


def _rows_of_call(rule: RuleLike, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any) -> list[Row]:
    by_shape = getattr(rule, "rows_by_shape", None)
    if by_shape is not None and outputs is not None:
        rows = by_shape(args, kwargs, outputs)
    else:
        rows = rule.rows(*with_leaves(list(args), _as_tensor), **with_leaves(dict(kwargs), _as_tensor))
    return [row for row in rows if row.local is None]


def _rows_function(rule: RuleLike, op: OpOverload) -> Any:
    """Rows for a call, with keyword tensors in the order in which DTensor counts them: the call's."""
    keyword_order = [argument.name for argument in op._schema.arguments]

    def rows(args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any = None) -> list[Row]:
        found = _rows_of_call(rule, args, kwargs, outputs)
        counts = {name: count_tensors(value) for name, value in kwargs.items()}
        in_schema_order = sorted(counts, key=keyword_order.index)
        if in_schema_order == list(counts):
            return found
        first = count_tensors(args)
        return [_reordered(row, first, in_schema_order, counts) for row in found]

    return rows


def _reordered(row: Row, first: int, names: Sequence[str], counts: Mapping[str, int]) -> Row:
    """A row whose keyword tensors stand in the order of `names`, put into the order of `counts`."""
    parts, start = {}, first
    for name in names:
        parts[name] = row.inputs[start : start + counts[name]]
        start += counts[name]
    inputs = (*row.inputs[:first], *(p for name in counts for p in parts[name]))
    return Row(inputs, row.outputs, row.shards, row.local)


def count_tensors(value: Any) -> int:
    return sum(map(is_tensor, leaves(value)))


def _strategy_function(rule: RuleLike) -> Any:
    """The rule as a strategy function of PyTorch: rows that hold for shards of any size."""

    def strategy(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[list[Any]]:
        rows = _rows_function(rule, op)(args, kwargs)
        return [
            [
                _ShardingPlaceholder(p.dim) if isinstance(p, AnyShard) else p
                for p in (*row.outputs, *row.inputs)
            ]
            for row in rows
            if row.shards == "any" and not row.is_replicated
        ]

    return strategy
