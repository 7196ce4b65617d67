"""Where our functions replace DTensor's, and how they are removed again.

`refresh` replaces DTensor's functions while something in `bridge` needs that, and restores them when
nothing does. It also empties DTensor's caches, which would keep old decisions.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch.distributed.tensor._api as api
import torch.distributed.tensor._dispatch as dispatch
import torch.distributed.tensor._redistribute as torch_redistribute
import torch.distributed.tensor._sharding_prop as sharding_prop
from torch.distributed.tensor import DTensor

from ..errors import UsageError
from ..mesh import DEFAULT_CLUSTER, Cluster
from ._caches import clear_caches
from ._replacements import expand, propagate, redistribute_local_tensor
from ._state import Replaced, Search, bridge


def use_search(*, cluster: Cluster | str = DEFAULT_CLUSTER) -> ExitStack:
    """Make DTensor choose placements by our search and redistribute by our chains of steps.

    Takes effect at once; `with use_search(): ...` ends it with the block, `.close()` on what it returns ends
    it too. Prices are those of `cluster`.

    What stays with PyTorch: operators with hand-written strategies, foreach operators, anything being traced,
    placements other than R, S and P.
    """
    if bridge.search is not None:
        raise UsageError("use_search() is already in use: close it before using another")
    bridge.search = search = Search(Cluster.of(cluster))
    refresh()
    stack = ExitStack()
    stack.callback(_end, search)
    return stack


def _end(search: Search) -> None:
    if bridge.search is search:
        bridge.search = None
        refresh()


def refresh() -> None:
    """Replace DTensor's functions by ours where something in use needs that, and restore them where nothing does."""
    if not bridge.extensions:
        bridge.propagator = None
    elif bridge.propagator is None:  # copied while it still has functions of its own
        bridge.propagator = copy.copy(DTensor._op_dispatcher.sharding_propagator)
        bridge.propagator.op_single_dim_strategy_funcs = bridge.extensions
    wanted = {(owner, name): function for owner, name, function in _wanted()}
    for place in [place for place in bridge.functions if place not in wanted]:
        _put_back(*place)
    for (owner, name), function in wanted.items():
        if (owner, name) not in bridge.functions:
            bridge.functions[owner, name] = Replaced(getattr(owner, name), name in vars(owner))
            setattr(owner, name, function)
    clear_caches()


def _wanted() -> Iterator[tuple[Any, str, Any]]:
    if bridge.rules or bridge.search is not None:
        yield sharding_prop, "_expand_single_dim_strategy_to_mesh", expand
    if bridge.search is not None:
        for module in (torch_redistribute, dispatch, api):
            yield module, "redistribute_local_tensor", redistribute_local_tensor
    if bridge.extensions:
        propagator = DTensor._op_dispatcher.sharding_propagator
        yield propagator, "propagate_op_sharding_non_cached", propagate
        yield propagator, "propagate_op_sharding", sharding_prop.LocalLRUCache(propagate)


def _put_back(owner: Any, name: str) -> None:
    replaced = bridge.functions.pop((owner, name))
    if replaced.own:
        setattr(owner, name, replaced.original)
    else:
        delattr(owner, name)
