"""What backward computes again because the user says so: blocks that keep only what is used outside of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise.errors import UsageError
from shardwise.graph import Graph, capture, run

WIDTH, BLOCKS = 16, 3


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(dropout)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.dropout(self.down(F.gelu(self.up(x))))


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(dropout) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x).softmax(-1).square().sum()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def x():
    return torch.rand(4, 6, WIDTH)


def kept(graph: Graph, block: str) -> set[str]:
    """The operators of a block whose results backward uses though forward made them."""
    made = {n.name: n.op for n in graph.nodes if n.phase == "forward" and n.module.startswith(block)}
    used = {graph.base(ref).name for n in graph.nodes if n.phase == "backward" for ref in n.inputs}
    return {made[name].split(".")[1] for name in used & set(made)}


def test_a_block_keeps_only_what_is_used_outside_of_it(model, x):
    none, full = (capture(model, (x,), recompute=how) for how in ("none", "full"))
    assert {"addmm", "gelu"} & kept(none, "layers.1")
    assert kept(full, "layers.1") == {"add"}  # what the next block reads
    again = len(full.nodes) - len(none.nodes)
    assert again > 10 * BLOCKS


def test_selective_keeps_attention_and_every_second_product(model, x):
    graph = capture(model, (x,), recompute="selective")
    assert kept(graph, "layers.1") == {"add", "attention", "addmm"}
    repeated = sum(
        n.op == "aten.addmm.default" and n.phase == "backward" and n.module.startswith("layers.1")
        for n in graph.nodes
    )
    assert 0 < repeated <= 2  # of four


def test_patterns_name_blocks_and_the_first_that_matches_counts(model, x):
    graph = capture(model, (x,), recompute={"layers.1": "none", "layers.*": "full"})
    assert "gelu" not in kept(graph, "layers.0") | kept(graph, "layers.2")
    assert kept(graph, "layers.1") == kept(capture(model, (x,)), "layers.1")


@pytest.mark.parametrize("how", ["selective", "full"])
def test_gradients_are_those_of_the_model(model, x, how):
    graph = capture(model, (x,), recompute=how)
    assert Graph.from_json(graph.to_json()) == graph
    expected = run(capture(model, (x,)), model, (x,))
    found = run(graph, model, (x,))
    for name, gradient in expected.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient)


def test_random_numbers_are_drawn_once(x):
    none, full = (capture(Model(0.5), (x,), recompute=how) for how in ("none", "full"))
    assert len(none.live.draws) == len(full.live.draws) == BLOCKS


def test_parts_that_run_again_are_parts_of_another_call(x):
    """Otherwise the kernels of forward and of what is computed again would be priced as one."""
    block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LogSoftmax(-1), nn.Linear(WIDTH, 1))
    graph = capture(nn.Sequential(block), (x,), recompute="full")
    phases = {}
    for node in graph.nodes:
        if node.part_of and not node.facts.view:
            phases.setdefault(node.part_of, set()).add(node.phase)
    assert any(name.endswith(" again") for name in phases)
    assert all(len(found) == 1 for found in phases.values())


def test_it_takes_less_memory_and_more_time_and_verifies(model):
    x = torch.rand(8, 64, WIDTH)
    plans = [
        sw.plan(model, (x,), mesh="dp=2,tp=2", cluster="laptop", recompute=how, compare=False, confirm=False)
        for how in ("none", "full")
    ]
    assert plans[1].cost.peak < 0.8 * plans[0].cost.peak
    assert plans[1].cost.compute > plans[0].cost.compute
    loaded = sw.Plan.from_json(plans[1].to_json())
    report = sw.verify(model, (x,), plan=loaded)
    assert report.ok, report


@pytest.mark.parametrize(
    ("recompute", "message"),
    [
        ("all", "recompute has 'all' for '.': use one of none, selective, full"),
        ({"blocks.*": "full"}, "'blocks..', which is no block of Model: its blocks are layers.0, layers.1"),
        (2, "recompute is 2: give a policy, or policies by pattern of blocks"),
    ],
)
def test_what_cannot_be_is_refused(model, x, recompute, message):
    with pytest.raises(UsageError, match=message):
        capture(model, (x,), recompute=recompute)


def test_what_is_compiled_is_not_computed_again_by_name(model, x):
    with pytest.raises(UsageError, match="decides itself what backward computes again"):
        capture(model, (x,), recompute="full", execution="compiled")


def test_a_model_without_blocks_is_told_so(x):
    with pytest.raises(UsageError, match="has no blocks to recompute: blocks are numbered modules"):
        capture(nn.Linear(WIDTH, 1), (x,), recompute="full")
