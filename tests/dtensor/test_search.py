"""DTensor with our search: PyTorch's own operators give the same results for no more communication."""

import itertools
import random

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from shardwise.dtensor import record_collectives, use_search
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from tests.versions import from_torch

ADD_IS_REFUSED = "DTensor chooses to redistribute shards to partial sums, which it cannot"
CALLS = {
    "mm": (torch.mm, [(8, 6), (6, 4)]),
    "bmm": (torch.bmm, [(4, 8, 6), (4, 6, 2)]),
    "addmm": (torch.addmm, [(4,), (8, 6), (6, 4)]),
    "add": (torch.add, [(8, 6), (8, 6)]),
    "add broadcasting": (torch.add, [(8, 6), (6,)]),
    "exp": (torch.exp, [(8, 6)]),
    "where": (lambda a, b: torch.where(a > 0, a, b), [(8, 6), (8, 6)]),
    "cat": (lambda a, b: torch.cat([a, b], 1), [(8, 6), (8, 2)]),
    "layer norm": (lambda x, w: torch.nn.functional.layer_norm(x, (6,), w), [(8, 6), (6,)]),
    "uneven mm": (torch.mm, [(5, 7), (7, 3)]),
}


def placed(mode, device_mesh, layout, tensor):
    with mode.disable():
        pieces = layout.split(tensor)
    return DTensor.from_local(
        mode.rank_map(lambda rank: pieces[rank]),
        device_mesh,
        layout.to_placements(),
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def run(mode, function, tensors):
    with record_collectives() as seen:
        result = function(*tensors)
    full = result.full_tensor()
    return (full._local_tensors[0] if hasattr(full, "_local_tensors") else full), seen


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=from_torch("2.12", ADD_IS_REFUSED)) if name == "add broadcasting" else name
        for name in CALLS
    ],
)
def test_results_are_equal_and_communication_is_no_more(simulated_ranks, name):
    function, shapes = CALLS[name]
    mesh, rng = Mesh.parse("dp=2,tp=2"), random.Random(name)
    with simulated_ranks(4) as mode:
        device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=mesh.names)
        total = {"theirs": 0, "ours": 0}
        for _ in range(20):
            with mode.disable():
                tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
                expected = function(*tensors)
            choices = [[Replicate(), *(Shard(d) for d in range(len(s))), Partial()] for s in shapes]
            layouts = [Layout(mesh, tuple(rng.choices(c, k=2))) for c in choices]
            inputs = [placed(mode, device_mesh, a, t) for a, t in zip(layouts, tensors, strict=True)]
            theirs, seen = run(mode, function, inputs)
            with use_search(cluster="laptop"):
                ours, seen_ours = run(mode, function, inputs)
            with mode.disable():
                torch.testing.assert_close(theirs, expected)
                torch.testing.assert_close(ours, expected)
            total["theirs"] += seen.total()
            total["ours"] += seen_ours.total()
            message = f"{[str(x) for x in layouts]}: {seen.collectives}, {seen_ours.collectives}"
            assert len(seen_ours.collectives) <= len(seen.collectives), message
    assert 0 < total["ours"] <= total["theirs"]


def test_collectives_inside_operators_are_recorded(simulated_ranks):
    with simulated_ranks(4) as mode:
        device_mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("d",))
        x = placed(mode, device_mesh, Layout.parse("P(sum)", "d=4"), torch.randn(8, 6))
        _, seen = run(mode, torch.exp, [x])
    assert [(c.kind, c.size, c.ranks) for c in seen.collectives] == [("all_reduce", 8 * 6 * 4, 4)]
    assert seen.counts() == {"all_reduce": 1}


def test_inputs_that_fit_need_nothing(simulated_ranks):
    with simulated_ranks(4) as mode:
        device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        for a, b in itertools.product(["S(0), R", "R, R"], ["R, S(1)", "R, R"]):
            x = placed(mode, device_mesh, Layout.parse(a, "dp=2,tp=2"), torch.randn(8, 6))
            y = placed(mode, device_mesh, Layout.parse(b, "dp=2,tp=2"), torch.randn(6, 4))
            with use_search(cluster="laptop"):
                assert run(mode, torch.mm, [x, y])[1].collectives == []


@from_torch("2.13", "DTensor does not multiply tensors of three dims by matrices on simulated ranks")
def test_a_network_trains_the_same(simulated_ranks):
    """Forward and backward: a vocabulary-sharded embedding, norm, column- and row-parallel layers, attention."""
    torch.manual_seed(0)
    weights = {
        "embedding": (torch.randn(12, 8), "S(0), S(1)"),
        "gain": (torch.randn(8), "R, R"),
        "up": (torch.randn(8, 16), "R, S(1)"),
        "down": (torch.randn(16, 8), "R, S(0)"),
    }
    words = torch.randint(0, 12, (4, 6))

    def loss(embedding, gain, up, down, words):
        x = torch.nn.functional.embedding(words, embedding).clone()
        x = x + torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (8,), gain) @ up) @ down
        return (torch.softmax(x @ x.transpose(1, 2), -1) @ x).square().mean()

    whole = [weight.clone().requires_grad_() for weight, _ in weights.values()]
    expected = loss(*whole, words)
    expected.backward()
    with simulated_ranks(4) as mode, use_search(cluster="laptop"):
        device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        spread = [
            placed(mode, device_mesh, Layout.parse(text, "dp=2,tp=2"), weight).requires_grad_()
            for weight, text in weights.values()
        ]
        result = loss(*spread, placed(mode, device_mesh, Layout.parse("S(0), R", "dp=2,tp=2"), words))
        result.backward()
        found = [tensor.full_tensor() for tensor in (result, *(w.grad for w in spread))]
        found = [x._local_tensors[0] if hasattr(x, "_local_tensors") else x for x in found]
    for ours, theirs in zip(found, [expected, *(w.grad for w in whole)], strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-5)


def test_operators_in_place_do_not_move_their_tensor(simulated_ranks):
    with simulated_ranks(4) as mode:
        device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        a, b = torch.randn(8, 6), torch.randn(8, 6)
        x = placed(mode, device_mesh, Layout.parse("S(0), S(1)", "dp=2,tp=2"), a.clone())
        y = placed(mode, device_mesh, Layout.parse("S(1), R", "dp=2,tp=2"), b)
        with use_search(cluster="laptop"):
            x.add_(y)
        assert x.placements == (Shard(0), Shard(1))
        full = x.full_tensor()._local_tensors[0]
        with mode.disable():
            torch.testing.assert_close(full, a + b)


def test_lists_of_foreach_operators_stay_with_pytorch(simulated_ranks):
    with simulated_ranks(4) as mode:
        device_mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("d",))
        tensors = [torch.randn(8, 2), torch.randn(4, 3)]
        inputs = [placed(mode, device_mesh, Layout.parse("S(0)", "d=4"), t) for t in tensors]
        with use_search(cluster="laptop"):
            results = torch._foreach_mul(inputs, 2.0)
            full = [r.full_tensor()._local_tensors[0] for r in results]
        with mode.disable():
            for result, tensor in zip(full, tensors, strict=True):
                torch.testing.assert_close(result, tensor * 2)
