"""The functions that replace DTensor's while something here is in use (`_hooks` puts them in place).

DTensor expands single-dim strategies in one function and runs redistributions in another: our rules and our search
are used there. How to run a call is decided in a third, whatever the kind of registration. For an extended operator
both DTensor's rule and our rows are evaluated there: a decision of DTensor's that communicates nothing stands,
otherwise the one that communicates less is taken, as the union of both sets of rows would give. It is called where
DTensor's caches miss, so dispatch of a cached call costs the same as before.
"""

from functools import partial
from typing import Any

import torch.distributed.tensor._redistribute as torch_redistribute
import torch.distributed.tensor._sharding_prop as sharding_prop
from torch import Tensor
from torch.distributed._functional_collectives import _are_we_tracing
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding
from torch.distributed.tensor._ops.single_dim_strategy import _SingleDimStrategyInfo

from ..calls import Call, facts, is_composite, is_tensor, leaves
from ..errors import UsageError
from ..layout import mixes_partials
from ..mesh import DEFAULT_CLUSTER, Cluster
from ..redistribution import Prices
from ._propagate import input_specs, metas, rows_of_torch, strategy_from_rows
from ._redistribute import is_plain, layout_of_spec, run_chain
from ._state import RuleInfo, bridge
from ._strided import with_open_rows

# How propagation reports that it cannot run a call: torch by these (NotImplementedError is one), our rows where the
# call is invalid. Any other exception is a bug of ours, and propagates.
_NO_WAY = (RuntimeError, UsageError)


def expand(mesh: DeviceMesh, schema: OpSchema, info: _SingleDimStrategyInfo, output_meta: Any) -> Any:
    """Replaces PyTorch's expansion: ours for our rules, and for PyTorch's own while the search is used."""
    strategy = None
    specs = input_specs(schema)
    if specs is not None and isinstance(info, RuleInfo):
        strategy = _by_rule(schema, specs, info, output_meta)
    elif specs is not None and bridge.search is not None and not facts(schema.op).foreach:
        strategy = _by_search(schema, specs, info, output_meta, bridge.search.cluster)
    if strategy is None:
        original = bridge.original(sharding_prop, "_expand_single_dim_strategy_to_mesh")
        return original(mesh, schema, info, output_meta)
    return lambda op, args, kwargs: strategy


def _by_rule(schema: OpSchema, specs: list[DTensorSpec], info: RuleInfo, output_meta: Any) -> Any:
    assert info.rows is not None
    search = bridge.search
    cluster = search.cluster if search is not None else Cluster.of(DEFAULT_CLUSTER)
    outputs = [None if meta is None else tuple(meta.shape) for meta in metas(output_meta)]
    rows = info.rows(schema.args_meta, schema.kwargs_meta, outputs)
    call: Call | None = Call(schema.op, schema.args_meta, schema.kwargs_meta, tuple(outputs))
    assert call is not None
    # Tensors among keyword arguments may count in another order.
    if len(call.tensors) != len(specs) or any(map(is_tensor, leaves(dict(call.kwargs)))):
        call = None
    return strategy_from_rows(
        schema,
        specs,
        with_open_rows(rows, call, specs),
        output_meta,
        cluster,
        runs_chains=search is not None,
        accept=partial(bridge.confirms, call) if bridge.confirms is not None and call is not None else None,
        call=call,
        rows_of=info.left,
    )


def _by_search(
    schema: OpSchema,
    specs: list[DTensorSpec],
    info: _SingleDimStrategyInfo,
    output_meta: Any,
    cluster: Cluster,
) -> Any:
    found = rows_of_torch(schema, info, output_meta, specs)
    if found is None or not specs:
        return None
    rows, fits = found
    return strategy_from_rows(schema, specs, rows, output_meta, cluster, runs_chains=True, accept=fits)


def redistribute_local_tensor(
    local_tensor: Tensor, current_spec: DTensorSpec, target_spec: DTensorSpec, **options: Any
) -> Tensor:
    """Replaces PyTorch's function of this name, while the search is used."""
    ours = (
        current_spec.mesh == target_spec.mesh
        and current_spec.mesh._is_current_rank_part_of_mesh()
        and is_plain(current_spec)
        and is_plain(target_spec)
        and not mixes_partials(current_spec.placements)
        and not mixes_partials(target_spec.placements)
        and not _are_we_tracing()
    )
    if not ours:
        original = bridge.original(torch_redistribute, "redistribute_local_tensor")
        return original(local_tensor, current_spec, target_spec, **options)
    meta, search = current_spec.tensor_meta, bridge.search
    assert meta is not None and search is not None
    shape = tuple(meta.shape)
    chain = Prices(search.cluster).chain(
        layout_of_spec(current_spec), layout_of_spec(target_spec), shape, meta.dtype.itemsize
    )
    return run_chain(local_tensor, chain, current_spec.mesh, shape)


def propagate(schema: OpSchema) -> OutputSharding:
    """Replaces DTensor's decision, while there are extensions: its own or ours, whichever communicates less."""
    theirs_of = bridge.original(
        DTensor._op_dispatcher.sharding_propagator, "propagate_op_sharding_non_cached"
    )
    if schema.op not in bridge.extensions:
        return theirs_of(schema)
    ours_of = bridge.propagator.propagate_op_sharding_non_cached
    if bridge.rules[schema.op].replaces:
        return ours_of(schema)
    try:
        theirs = theirs_of(schema)
    except Exception as error:
        if is_composite(schema.op):
            raise  # DTensor runs its decomposition instead
        try:
            return ours_of(schema)
        except _NO_WAY:
            raise error from None
    price = _price(schema, theirs)
    if not price:
        return theirs
    try:
        ours = ours_of(schema)
    except _NO_WAY:
        return theirs
    ours_price = _price(schema, ours)
    return ours if ours_price is not None and ours_price < price else theirs


def _price(schema: OpSchema, decision: OutputSharding) -> float | None:
    """The price of redistributing the inputs for a decision; None where it is unknown."""
    if not decision.needs_redistribute or decision.redistribute_schema is None:
        return 0.0
    before, after = schema.args_spec, decision.redistribute_schema.args_spec
    if len(before) != len(after) or not all(is_plain(spec) for spec in (*before, *after)):
        return None
    total = 0.0
    for source, target in zip(before, after, strict=True):
        if source.placements != target.placements:
            assert source.tensor_meta is not None
            shape, itemsize = tuple(source.tensor_meta.shape), source.tensor_meta.dtype.itemsize
            total += Prices().chain(layout_of_spec(source), layout_of_spec(target), shape, itemsize).price
    return total
