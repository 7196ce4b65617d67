"""Strided shards of DTensors run by rules for plain ones, where experiments confirm that these hold for them."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import shardwise as sw
from shardwise.dtensor import record_collectives, register, reset
from shardwise.rules import Clause, Rule

STRIDED = (_StridedShard(0, split_factor=2), Shard(0))
RENORM = Rule("aten.renorm.default", (Clause.parse("S(dim) -> S(dim)"),))


@pytest.fixture(autouse=True)
def clean():
    yield
    reset()


@pytest.mark.parametrize("given", ["book", "own", "open"])
@pytest.mark.parametrize("size", [8, 6, 5])
def test_renorm_of_a_strided_shard_needs_no_collective(simulated_ranks, given, size):
    if given == "book":
        sw.install()
    else:
        register(
            RENORM if given == "own" else Rule(RENORM.op, (Clause.parse("S(dim, sf=*) -> S(dim, sf=*)"),))
        )
    whole = torch.rand(size, 5)
    with simulated_ranks(4) as mode:
        mesh = init_device_mesh("cpu", (2, 2))
        with record_collectives() as recorded:
            result = torch.renorm(distribute_tensor(whole, mesh, STRIDED, src_data_rank=None), 2, 0, 0.5)
        assert not recorded.collectives and result.placements == STRIDED
        pieces = result.full_tensor()._local_tensors
        with mode.disable():
            assert all(torch.equal(piece, torch.renorm(whole, 2, 0, 0.5)) for piece in pieces.values())


def test_what_needs_neighbours_is_gathered(simulated_ranks):
    sw.install()
    whole = torch.rand(4, 6)
    with simulated_ranks(4) as mode:
        mesh = init_device_mesh("cpu", (2, 2))
        sharded = distribute_tensor(whole, mesh, STRIDED, src_data_rank=None)
        with record_collectives() as recorded:
            result = torch.ops.aten.reflection_pad1d.default(sharded, [1, 2])
        assert not recorded.collectives
        pieces = result.full_tensor()._local_tensors
        with mode.disable():
            expected = torch.ops.aten.reflection_pad1d.default(whole, [1, 2])
            assert all(torch.equal(piece, expected) for piece in pieces.values())
        along = distribute_tensor(
            whole, mesh, (_StridedShard(1, split_factor=2), Shard(1)), src_data_rank=None
        )
        with record_collectives() as recorded:
            result = torch.ops.aten.reflection_pad1d.default(along, [1, 2])
        assert recorded.collectives
        pieces = result.full_tensor()._local_tensors
        with mode.disable():
            assert all(torch.equal(piece, expected) for piece in pieces.values())
