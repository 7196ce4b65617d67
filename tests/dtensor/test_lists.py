"""Steps on the pieces of all ranks at once: the same tensors, and the collectives that were priced."""

import random

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise import Mesh
from shardwise.dtensor import Recorded, run_step_on_all
from shardwise.layout import Layout
from shardwise.redistribution import cheapest_chain


def random_layout(rng, mesh, ndim):
    reduction = rng.choice(["sum", "avg", "max", "min"])
    kinds = [Replicate(), Partial(reduction), *(Shard(dim) for dim in range(ndim))]
    placements = [rng.choice(kinds) for _ in mesh.shape]
    if rng.random() < 0.2:
        placements[-1] = _StridedShard(rng.randrange(ndim), split_factor=2)
        return Layout(mesh, tuple(placements))
    axes = [axis for axis, p in enumerate(placements) if isinstance(p, Shard)]
    rng.shuffle(axes)
    return Layout(mesh, tuple(placements), tuple(axes))


@pytest.mark.parametrize("mesh", ["d=4", "a=2,b=2", "a=2,b=3", "a=2,b=2,c=2"])
@pytest.mark.parametrize("shape", [(8, 12), (7, 5), (3, 0)])
def test_every_change_of_layout_keeps_the_tensor_and_sends_what_was_priced(mesh, shape):
    rng, mesh = random.Random(f"{mesh}{shape}"), Mesh.parse(mesh)
    tensor = torch.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape)
    kinds = set()
    for _ in range(60):
        source, target = (random_layout(rng, mesh, 2) for _ in range(2))
        change = cheapest_chain(source, target, shape)
        pieces, seen = source.split(tensor), []
        for step in change.steps:
            pieces = run_step_on_all(pieces, step, shape, seen)
        torch.testing.assert_close(target.join(pieces), tensor, msg=f"{source} -> {target}\n{change}")
        assert seen == [
            Recorded("all_to_all", step.size, mesh.ranks)
            if step.kind == "permute"
            else Recorded(step.kind, step.size, mesh.shape[step.axes[0]])
            for step in change.collectives
        ]
        kinds |= {step.kind for step in change.steps}
    assert {"all_gather", "all_reduce", "reduce_scatter", "slice"} <= kinds
