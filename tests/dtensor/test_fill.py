"""Open shard kinds are filled as PyTorch fills the placeholders of its single-dim strategies."""

import itertools

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import TensorMeta
from torch.distributed.tensor._ops import _pointwise_ops
from torch.distributed.tensor._ops._matrix_ops import gen_single_dim_einsum_strategies
from torch.distributed.tensor._ops._tensor_ops import cat_single_dim_strategy
from torch.distributed.tensor._ops.single_dim_strategy import (
    _fill_single_dim_strategy_placeholders,
    _insert_single_dim_replication_strategy,
    _ShardingPlaceholder,
)
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise import Row
from shardwise.expansion import fill
from shardwise.placements import AnyShard
from tests.versions import TORCH

META = TensorMeta(torch.Size((8, 8)), (8, 1), torch.float32)
STRATEGIES = {
    "mm": gen_single_dim_einsum_strategies("mk,kn->mn"),
    "bmm": gen_single_dim_einsum_strategies("bmk,bkn->bmn"),
    "addmm": gen_single_dim_einsum_strategies("mk,kn->mn", bias_shape=torch.Size((8,))),
    "cat": cat_single_dim_strategy(torch.ops.aten.cat.default, ((META, META, META), 0), {}),
}
if TORCH >= (2, 12):  # before, the rules of pointwise operators have no placeholders
    pointwise = _pointwise_ops._common_pointwise_single_dim_strategy()
    STRATEGIES["add"] = pointwise(torch.ops.aten.add.Tensor, (META, META), {})
KINDS = [
    Replicate(),
    Partial(),
    Shard(0),
    Shard(1),
    _StridedShard(0, split_factor=2),
    _StridedShard(1, split_factor=3),
]


def as_row(strategy):
    ours = [AnyShard(p.dim) if isinstance(p, _ShardingPlaceholder) else p for p in strategy]
    return Row(tuple(ours[1:]), (ours[0],))


@pytest.mark.parametrize("present", [c for n in range(4) for c in itertools.combinations(KINDS, n)], ids=str)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_rows_for_the_same_inputs(name, present):
    strategies = [list(strategy) for strategy in STRATEGIES[name]]
    inputs = len(strategies[0]) - 1
    theirs = _fill_single_dim_strategy_placeholders(
        set(present), _insert_single_dim_replication_strategy([list(s) for s in strategies], 1, inputs)
    )
    ours = fill([as_row(s) for s in strategies], present, inputs=inputs)
    assert set(ours) == {as_row(strategy) for strategy in theirs}
    assert ours[0].is_replicated
