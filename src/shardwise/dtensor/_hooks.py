"""Where our search and our chains of steps enter DTensor, and how they leave it again.

DTensor expands single-dim strategies in one function and runs redistributions in another. Both are replaced
while something here is in use, and put back when nothing is; every switch empties DTensor's caches, in which
old answers would live on.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch.distributed.tensor._api as api
import torch.distributed.tensor._dispatch as dispatch
import torch.distributed.tensor._redistribute as torch_redistribute
import torch.distributed.tensor._sharding_prop as sharding_prop
from torch import Tensor
from torch.distributed._functional_collectives import _are_we_tracing
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSchema
from torch.distributed.tensor._ops.single_dim_strategy import _SingleDimStrategyInfo

from ..calls import facts
from ..errors import UsageError
from ..layout import mixes_partials
from ..mesh import DEFAULT_CLUSTER, Cluster
from ..placements import Row
from ..redistribution import Prices
from ._caches import clear_caches
from ._propagate import input_specs, metas, rows_of_torch, strategy_from_rows
from ._redistribute import is_plain, layout_of_spec, run_chain

_torch_expand = sharding_prop._expand_single_dim_strategy_to_mesh
_torch_redistribute = torch_redistribute.redistribute_local_tensor


@dataclass
class RuleInfo(_SingleDimStrategyInfo):
    """What PyTorch keeps about a registered rule; `rows` gives our form of the same."""

    rows: Callable[[Any, Any, Any], list[Row]] | None = None


# The cluster of the search in use, if one is.
_active: list[Cluster] = []


def use_search(*, cluster: Cluster | str = DEFAULT_CLUSTER) -> ExitStack:
    """Make DTensor choose placements by our search and redistribute by our chains of steps.

    Takes effect at once; `with use_search(): ...` ends it with the block, `.close()` on what it returns ends
    it too. Prices are those of `cluster`.

    What stays with PyTorch: operators with hand-written strategies, foreach operators, anything being traced,
    placements other than R, S and P.
    """
    if _active:
        raise UsageError("use_search() is already in use: close it before using another")
    stack = ExitStack()
    stack.enter_context(_searching(Cluster.of(cluster)))
    return stack


@contextmanager
def _searching(cluster: Cluster) -> Iterator[None]:
    with expanding(), ExitStack() as stack:
        _active.append(cluster)
        for module in (torch_redistribute, dispatch, api):
            stack.enter_context(patch.object(module, "redistribute_local_tensor", _redistribute_local_tensor))
        clear_caches()
        try:
            yield
        finally:
            _active.remove(cluster)
            clear_caches()


_users = 0


@contextmanager
def expanding() -> Iterator[None]:
    """While anyone is inside, single-dim strategies are expanded here."""
    global _users
    _users += 1
    sharding_prop._expand_single_dim_strategy_to_mesh = _expand
    try:
        yield
    finally:
        _users -= 1
        if not _users:
            sharding_prop._expand_single_dim_strategy_to_mesh = _torch_expand


def _expand(mesh: DeviceMesh, schema: OpSchema, info: _SingleDimStrategyInfo, output_meta: Any) -> Any:
    """In place of PyTorch's expansion: ours for our rules, and for PyTorch's own while the search is used."""
    strategy = None
    specs = input_specs(schema)
    if specs is not None and isinstance(info, RuleInfo):
        strategy = _by_rule(schema, specs, info, output_meta)
    elif specs is not None and _active and not facts(schema.op).foreach:
        strategy = _by_search(schema, specs, info, output_meta)
    if strategy is None:
        return _torch_expand(mesh, schema, info, output_meta)
    return lambda op, args, kwargs: strategy


def _by_rule(schema: OpSchema, specs: list[DTensorSpec], info: RuleInfo, output_meta: Any) -> Any:
    assert info.rows is not None
    cluster = _active[-1] if _active else Cluster.of(DEFAULT_CLUSTER)
    outputs = [None if meta is None else tuple(meta.shape) for meta in metas(output_meta)]
    rows = info.rows(schema.args_meta, schema.kwargs_meta, outputs)
    return strategy_from_rows(schema, specs, rows, output_meta, cluster, runs_chains=bool(_active))


def _by_search(
    schema: OpSchema, specs: list[DTensorSpec], info: _SingleDimStrategyInfo, output_meta: Any
) -> Any:
    found = rows_of_torch(schema, info, output_meta, specs)
    if found is None or not specs:
        return None
    rows, fits = found
    return strategy_from_rows(schema, specs, rows, output_meta, _active[-1], runs_chains=True, accept=fits)


def _redistribute_local_tensor(
    local_tensor: Tensor, current_spec: DTensorSpec, target_spec: DTensorSpec, **options: Any
) -> Tensor:
    """In place of PyTorch's function of this name."""
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
        return _torch_redistribute(local_tensor, current_spec, target_spec, **options)
    meta = current_spec.tensor_meta
    assert meta is not None
    prices = Prices(_active[-1])
    shape = tuple(meta.shape)
    chain = prices.chain(
        layout_of_spec(current_spec), layout_of_spec(target_spec), shape, meta.dtype.itemsize
    )
    return run_chain(local_tensor, chain, current_spec.mesh, shape)
