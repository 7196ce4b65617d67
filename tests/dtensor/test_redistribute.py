"""Plans, run through DTensor on simulated ranks: the tensor is right, and what ran is what was priced."""

import random

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise import Mesh
from shardwise.dtensor import layout_of, local_of, record_collectives, redistribute, use_search
from shardwise.errors import UsageError
from shardwise.layout import Layout
from shardwise.redistribution import cheapest_chain

MESHES = ["d=4", "a=2,b=2", "a=2,b=3", "a=2,b=2,c=2", "a=4,b=2"]


def random_layout(rng, mesh, ndim):
    """Shards in any order of nesting, strided shards, and partials of every reduction."""
    reductions = rng.choice([["sum"], ["avg"], ["max"], ["min"], ["product"], ["sum", "avg"]])
    shards = [Shard(dim) for dim in range(ndim)]
    kinds = [Replicate(), *shards, *shards, *(Partial(r) for r in reductions)]
    placements = [rng.choice(kinds) for _ in mesh.shape]
    if rng.random() < 0.2:
        placements[rng.randrange(mesh.ndim)] = _StridedShard(
            rng.randrange(ndim), split_factor=rng.choice([2, 3])
        )
        return Layout(mesh, tuple(placements))
    axes = [axis for axis, p in enumerate(placements) if isinstance(p, Shard)]
    rng.shuffle(axes)
    return Layout(mesh, tuple(placements), tuple(axes))


def place(mode, device_mesh, layout, tensor):
    """A DTensor with the pieces that the layout says."""
    with mode.disable():
        pieces = layout.split(tensor)
    local = mode.rank_map(lambda rank: pieces[rank])
    return DTensor.from_local(
        local,
        device_mesh,
        layout.to_placements(),
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def pieces_of(mode, distributed):
    local = distributed.to_local()
    with mode.disable():
        ranks = range(distributed.device_mesh.size())
        return [local._local_tensors[r] if hasattr(local, "_local_tensors") else local for r in ranks]


def priced(steps, mesh):
    """The collectives of a chain as they are recorded: a permute is an exchange among all ranks."""
    return [
        ("all_to_all", step.size, mesh.ranks)
        if step.kind == "permute"
        else (step.kind, step.size, mesh.shape[step.axes[0]])
        for step in steps
    ]


def check(mode, device_mesh, source, target, tensor):
    expected = cheapest_chain(source, target, tensor.shape, dtype=tensor.dtype)
    distributed = place(mode, device_mesh, source, tensor)
    # DTensor's own method refuses to make a tensor partial, which our function does.
    becomes_partial = any(
        isinstance(b, Partial) and a != b for a, b in zip(source.placements, target.placements, strict=True)
    )
    with use_search(), record_collectives() as seen:
        if becomes_partial:
            moved = redistribute(distributed, target)
        else:
            moved = distributed.redistribute(placements=target.to_placements())
    message = f"{source} -> {target}, {tuple(tensor.shape)} on {source.mesh}:\n{expected}"
    assert layout_of(moved) == target, message
    ran = [(c.kind, c.size, c.ranks) for c in seen.collectives]
    assert ran == priced(expected.collectives, source.mesh), message
    pieces = pieces_of(mode, moved)
    with mode.disable():
        for rank, piece in enumerate(pieces):
            assert tuple(piece.shape) == target.local_shape(tensor.shape, rank), message
        assert torch.allclose(target.join(pieces), tensor), message


@pytest.mark.parametrize("text", MESHES)
def test_random_changes_move_the_tensor_by_the_priced_collectives(simulated_ranks, text):
    rng, mesh = random.Random(text), Mesh.parse(text)
    with simulated_ranks(mesh.ranks) as mode:
        device_mesh = init_device_mesh("cpu", mesh.shape, mesh_dim_names=mesh.names)
        for _ in range(64):
            ndim = rng.choice([1, 2, 2, 3])
            shape = [rng.choice([1, 2, 4, 5, 6, 8, 12]) for _ in range(ndim)]
            with mode.disable():
                tensor = torch.randint(1, 4, shape).double()
            check(mode, device_mesh, random_layout(rng, mesh, ndim), random_layout(rng, mesh, ndim), tensor)


# What DTensor's own redistribution has had trouble with, and the cases of changes between named axes.
@pytest.mark.parametrize("shape", [(8, 16), (9, 5), (7, 13)])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("S(0), S(1)", "R, R"),
        ("R, R", "S(0), S(1)"),
        ("S(0), S(1)", "S(0), R"),
        ("S(0), R", "R, S(1)"),
        ("S(0), S(1)", "S(1), S(0)"),
        ("S(0), R", "S(0), S(0)"),
        ("S(0), S(0)", "S(0)[1], S(0)[0]"),
        ("S(0), S(0)", "R, S(0)"),
        ("P(max), P(max)", "R, R"),
        ("P(min), S(0)", "S(0), S(1)"),
        ("P(sum), P(avg)", "S(1), R"),
    ],
)
def test_known_trouble_spots(simulated_ranks, source, target, shape):
    mesh = Mesh.parse("dp=2,tp=2")
    with simulated_ranks(4) as mode:
        device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=mesh.names)
        with mode.disable():
            tensor = torch.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape)
        check(mode, device_mesh, Layout.parse(source, mesh), Layout.parse(target, mesh), tensor)


@pytest.mark.parametrize(
    ("reduction", "expected"), [("max", 3.0), ("min", 0.0), ("sum", 6.0), ("product", 0.0)]
)
@pytest.mark.parametrize("target", ["R", "S(0)"])
def test_partials_reduce_by_their_own_reduction(simulated_ranks, reduction, expected, target):
    with simulated_ranks(4) as mode:
        device_mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("d",))
        local = mode.rank_map(lambda rank: torch.full((5,), float(rank)))
        tensor = DTensor.from_local(local, device_mesh, [Partial(reduction)], run_check=False)
        pieces = pieces_of(mode, redistribute(tensor, target))
    assert torch.equal(torch.cat(pieces).unique(), torch.tensor([expected]))


def test_integers_become_partial_exactly(simulated_ranks):
    with simulated_ranks(2) as mode:
        device_mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("d",))
        tensor = place(mode, device_mesh, Layout.parse("R", "d=2"), torch.tensor([1, 2, 3]))
        moved = redistribute(tensor, [Partial("sum")])
        pieces = pieces_of(mode, moved)
    assert [piece.tolist() for piece in pieces] == [[1, 2, 3], [0, 0, 0]]
    assert pieces[0].dtype == torch.int64


def test_gradients_pass_through_dtensors_own_redistribute(simulated_ranks):
    with simulated_ranks(4) as mode:
        device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        tensor = place(mode, device_mesh, Layout.parse("S(0), S(1)", "dp=2,tp=2"), torch.randn(6, 4))
        tensor.requires_grad_()
        with use_search():
            (tensor.redistribute(placements=[Shard(1), Shard(0)]) * 2).sum().backward()
            full = tensor.grad.full_tensor()
        pieces = [full._local_tensors[0] if hasattr(full, "_local_tensors") else full]
    assert torch.equal(pieces[0], torch.full((6, 4), 2.0))


def test_the_search_is_used_once_and_leaves_nothing_behind():
    import torch.distributed.tensor._redistribute as torch_redistribute
    import torch.distributed.tensor._sharding_prop as sharding_prop

    before = sharding_prop._expand_single_dim_strategy_to_mesh, torch_redistribute.redistribute_local_tensor
    with use_search():
        assert sharding_prop._expand_single_dim_strategy_to_mesh is not before[0]
        with pytest.raises(UsageError, match="already in use"):
            use_search()
    assert before == (
        sharding_prop._expand_single_dim_strategy_to_mesh,
        torch_redistribute.redistribute_local_tensor,
    )


@pytest.mark.parametrize("size", [6, 8])
def test_a_gradient_has_the_layout_and_the_strides_of_its_tensor(simulated_ranks, size):
    """Strides that follow from local ones as if shards were even make autograd copy gradients, or gather them."""
    with simulated_ranks(4) as mode:
        device_mesh = init_device_mesh("cpu", (4,))
        tensor = place(
            mode,
            device_mesh,
            Layout.of([Shard(1)], Mesh.from_device_mesh(device_mesh)),
            torch.rand(5, size, 2, 3),
        )
        tensor.requires_grad_()
        (local_of(tensor) * 2).sum().backward()
        (transposed,) = torch.autograd.grad(local_of(tensor).mT.clone().square().sum(), [tensor])
        for found, right in (
            (tensor.grad, torch.full(tensor.shape, 2.0)),
            (transposed, 2 * tensor.full_tensor()),
        ):
            assert found.placements == (Shard(1),) and found.stride() == tensor.stride()
            assert torch.equal(found.full_tensor(), right)
