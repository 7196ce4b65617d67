import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise.errors import UsageError
from shardwise.placements import join, shard_sizes, split
from tests.versions import from_torch

STRIDED_ALONE = from_torch(
    "2.12", "DTensor refuses a strided shard without the shard that it is strided over"
)


def on_rank(tensor, rank):
    """What one simulated rank holds; a tensor that is the same on all ranks may be a plain one."""
    return tensor._local_tensors[rank] if hasattr(tensor, "_local_tensors") else tensor


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 5, 8, 9, 13])
@pytest.mark.parametrize(
    "placement",
    [
        Replicate(),
        Shard(0),
        Shard(1),
        pytest.param(_StridedShard(0, split_factor=2), marks=STRIDED_ALONE),
        pytest.param(_StridedShard(0, split_factor=3), marks=STRIDED_ALONE),
    ],
    ids=str,
)
def test_pieces_are_those_of_distribute_tensor(simulated_ranks, size, ranks, placement):
    tensor = torch.arange(size * 6.0).reshape(size, 6)
    pieces = split(tensor, placement, ranks)
    with simulated_ranks(ranks):
        mesh = init_device_mesh("cpu", (ranks,))
        distributed = distribute_tensor(tensor, mesh, [placement], src_data_rank=None)
        local = [on_rank(distributed.to_local(), rank) for rank in range(ranks)]
        full = on_rank(distributed.full_tensor(), 0)
    for rank in range(ranks):
        assert torch.equal(pieces[rank], local[rank])
    assert torch.equal(join(pieces, placement), full)
    assert torch.equal(full, tensor)


@pytest.mark.parametrize("reduction", ["sum", "avg", "max", "min"])
def test_joining_partials_is_full_tensor(simulated_ranks, reduction):
    pieces = [torch.randn(3, 4, dtype=torch.float64) for _ in range(3)]
    with simulated_ranks(3) as mode:
        local = mode.rank_map(lambda rank: pieces[rank])
        mesh = init_device_mesh("cpu", (3,))
        full = DTensor.from_local(local, mesh, [Partial(reduction)]).full_tensor()
        expected = on_rank(full, 0)
    torch.testing.assert_close(join(pieces, Partial(reduction)), expected)


@pytest.mark.parametrize(
    ("size", "ranks", "sizes"),
    [(40, 4, [10] * 4), (10, 4, [3, 3, 3, 1]), (9, 4, [3, 3, 3, 0]), (2, 4, [1, 1, 0, 0])],
)
def test_sizes_follow_chunk(size, ranks, sizes):
    assert shard_sizes(size, ranks) == sizes


def test_integer_sums_stay_integers():
    pieces = [torch.tensor([1, 2]), torch.tensor([3, 4])]
    assert join(pieces, Partial("sum")).dtype == torch.int64


def test_a_dim_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match=r"S\(2\) shards dim 2, but the tensor of shape \(3, 4\)"):
        split(torch.zeros(3, 4), Shard(2), 2)
