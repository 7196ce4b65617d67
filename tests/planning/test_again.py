"""What a plan decides to compute again: as little as lets it fit, in whatever calls are cheapest."""

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import Graph, capture
from shardwise.planning import DoesNotFit, Planner

WIDTH = 32


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        left, right = self.up(self.norm(x)).chunk(2, -1)
        hidden = torch.cat([torch.sigmoid(left), torch.nn.functional.gelu(right)], -1)
        return x + self.dropout(self.down(hidden))


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0, blocks: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(dropout) for _ in range(blocks))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


@pytest.fixture(scope="module")
def x():
    return torch.rand(16, 32, WIDTH)


def planned(model, x, recompute, **options):
    options = {"compare": False, "confirm": False, "time_limit": 20.0, **options}
    return sw.plan(model, (x,), mesh="d=2", cluster="laptop", recompute=recompute, **options)


def again(graph: Graph) -> set[str]:
    """The operators that a plan has chosen to run again, without views."""
    nodes = {node.name: node for node in graph.nodes}
    return {nodes[name].op.split(".")[1] for name in graph.again if not nodes[name].facts.view}


def test_what_fits_is_computed_once(x):
    model = Model()
    none, auto = planned(model, x, "none"), planned(model, x, "auto")
    assert not again(auto.graph)
    assert auto.cost.seconds == pytest.approx(none.cost.seconds)
    assert auto.cost.peak == none.cost.peak


def test_under_a_limit_no_more_is_computed_again_than_has_to_be(x):
    """CASES 68: it lies between keeping everything and computing everything again, in time and in memory."""
    model = Model()
    none, full = planned(model, x, "none"), planned(model, x, "full")
    limit = (none.cost.peak + full.cost.peak) // 2
    auto = planned(model, x, "auto", memory=limit)
    assert auto.cost.peak <= limit < none.cost.peak
    assert none.cost.seconds < auto.cost.seconds < full.cost.seconds
    assert "addmm" not in again(auto.graph)  # what is cheap goes first
    assert auto.bound <= auto.cost.seconds
    assert "computed again" in auto.summary()


def test_a_plan_that_computes_again_is_verified_after_json(x):
    """CASES 70: random numbers are kept, and so are the same."""
    torch.manual_seed(0)
    model = Model(dropout=0.3)
    limit = int(0.85 * planned(model, x, "none").cost.peak)
    plan = planned(model, x, "auto", memory=limit)
    assert again(plan.graph) and "native_dropout" not in again(plan.graph)
    loaded = sw.Plan.from_json(plan.to_json())
    assert loaded.graph == plan.graph
    report = sw.verify(model, (x,), plan=loaded, steps=2, optimizer="adamw")
    assert report.ok, report
    assert report.peak == report.predicted_peak


@pytest.mark.long
def test_ranks_compute_again_what_the_plan_has_chosen(x):
    torch.manual_seed(0)
    model = Model(dropout=0.3)
    limit = int(0.8 * planned(model, x, "none", micro_batches=2).cost.peak)
    plan = planned(model, x, "auto", micro_batches=2, memory=limit)
    assert again(plan.graph)
    report = sw.verify(model, (x,), plan=plan, steps=3, optimizer="adamw", backend="gloo", only_plan=True)
    assert report.ok, report


def test_a_value_with_two_users_in_backward_is_computed_again_once():
    """CASES 69."""

    def model(x, w):
        y = torch.tanh(x @ w)
        return (torch.exp(y) + y * y).sum()

    arguments = torch.empty(64, 64, requires_grad=True), torch.empty(64, 64, requires_grad=True)
    graph = capture(model, arguments, recompute="auto")
    planner = Planner(graph, sw.Mesh.parse("d=1"), sw.Cluster.of("laptop"))
    copies = [copy for copy, name in planner.recomputable.copies.items() if name == "tanh"]
    assert copies == ["tanh_again"]
    chosen = planner.recomputable.chosen(copies)
    users = {node.name for node in chosen.users[next(iter(chosen["tanh_again"].results))]}
    assert len(users) >= 2
    assert sum(node.op == "aten.tanh.default" for node in chosen.nodes) == 2


def test_no_plan_fits_in_less_than_what_is_proven_to_be_needed(x):
    class Chained(nn.Module):
        """Values that calls which run again read long before those that always run."""

        def forward(self, x):
            for _ in range(4):
                left, right = torch.sigmoid(x), torch.tanh(x)
                x = torch.exp(left * right) * torch.cos(right) + left
            return x.sum()

    x = x.clone().requires_grad_()
    with pytest.raises(DoesNotFit) as refused:
        planned(Chained(), x, "auto", memory=1)
    assert 1 < refused.value.at_least <= refused.value.enough


def test_blocks_are_left_out_by_name(x):
    model = Model(blocks=3)
    limit = int(0.9 * planned(model, x, "none").cost.peak)
    plan = planned(model, x, {"layers.1": "auto"}, memory=limit)
    nodes = {node.name: node for node in plan.graph.nodes}
    assert plan.graph.again
    assert all(nodes[name].module.startswith("layers.1") for name in plan.graph.again)


def test_layers_that_look_alike_may_differ_in_what_is_computed_again(x):
    model = Model(blocks=8)
    none = planned(model, x, "none", share_layers=True)
    plan = planned(model, x, "auto", share_layers=True, memory=int(0.9 * none.cost.peak))
    nodes = {node.name: node for node in plan.graph.nodes}
    by_block: dict[str, set[str]] = {}
    for name in plan.graph.again:
        if not nodes[name].facts.view:
            by_block.setdefault(nodes[name].module.split(".")[1], set()).add(nodes[name].op)
    assert plan.share_layers and plan.cost.peak <= 0.9 * none.cost.peak
    assert len({frozenset(by_block.get(str(block), ())) for block in range(8)}) > 1


def test_what_computes_everything_again_is_a_baseline(x):
    model = Model()
    plan = planned(model, x, "auto", compare=True)
    full = plan.baselines["everything again"]
    assert full is not None
    assert full.peak < plan.cost.peak and full.seconds > plan.cost.seconds
