"""Where versions of torch differ in what the bridge uses of DTensor: each difference once, by what that torch has."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch.distributed._functional_collectives as funcol
from torch.distributed.tensor._op_schema import OpSchema
from torch.distributed.tensor._ops import single_dim_strategy
from torch.distributed.tensor._ops.single_dim_strategy import (
    _SingleDimStrategyInfo,
    register_single_dim_strategy,
)
from torch.distributed.tensor.placement_types import Placement

# Collectives of one tensor, as torch 2.11 and 2.12 call them too.
all_gather_single = getattr(funcol, "all_gather_single", funcol.all_gather_tensor)
reduce_scatter_single = getattr(funcol, "reduce_scatter_single", funcol.reduce_scatter_tensor)

_PREPARED = getattr(single_dim_strategy, "_PreparedSingleDimStrategy", None)  # torch 2.11 has none


def uneven_allowed(function: Callable[..., Any]) -> dict[str, Any]:
    """How a function or class of torch is told that uneven shards are allowed: torch 2.11 has no word for it."""
    known = signature(function).parameters
    return {"allow_uneven_sharding": True} if "allow_uneven_sharding" in known else {}


def register_strategy(op: Any, schema_info: Any, function: Callable[..., Any]) -> None:
    """Register a single-dim strategy that uneven shards are allowed for."""
    options = uneven_allowed(register_single_dim_strategy)
    register_single_dim_strategy(op, schema_info, **options)(function)


def takes_several_meshes(info: _SingleDimStrategyInfo) -> bool:
    """Whether a strategy is for operands on different meshes (from torch 2.12)."""
    return getattr(info, "different_mesh_args", None) is not None


def strategies_of(
    info: _SingleDimStrategyInfo, schema: OpSchema, output_meta: Any, outputs: int
) -> tuple[list[list[Placement | None]], bool]:
    """The placements of the outputs, then of the inputs, that a single-dim strategy allows for a call, and whether
    uneven shards are."""
    if _PREPARED is not None:
        prepared = _PREPARED(info, schema, output_meta)
        assert prepared.num_outputs == outputs
        return prepared.expanded_strategies, prepared.allow_uneven_sharding
    inputs = single_dim_strategy._get_num_tensor_inputs(schema)
    listed = info.func(schema.op, schema.args_meta, schema.kwargs_meta)
    with_replicated = single_dim_strategy._insert_single_dim_replication_strategy(listed, outputs, inputs)
    placements = single_dim_strategy._get_unique_placements(schema)
    return single_dim_strategy._fill_single_dim_strategy_placeholders(placements, with_replicated), False


def traced(given: Sequence[Any]) -> Sequence[Any]:
    """The schema, placements and mesh of a trace of a decomposition: torch 2.11 also gives its propagator, last, later
    ones the strategy that traces, first."""
    return given[:3] if isinstance(given[0], OpSchema) else given[1:]
