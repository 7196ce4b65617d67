"""Parameters that are held otherwise than at home: steps equal the model's, whatever is gathered or reduced once."""

import random
from dataclasses import replace

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import chosen_again, may_run_again
from shardwise.planning import plan_graph, random_plan


class Shared(nn.Module):
    """Two parameters with the same gradient, one that is used twice, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.rand(12, 8))
        self.one, self.two = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))
        self.scale = nn.Parameter(torch.rand(8), requires_grad=False)

    def forward(self, x):
        made = (x @ self.table) * self.scale + self.one + self.two
        return (made @ self.table.t()).square().mean()


@pytest.fixture(scope="module")
def shared():
    torch.manual_seed(0)
    return Shared(), (torch.rand(8, 12),)


@pytest.mark.parametrize("mesh", ["d=3", "a=2,b=2"])
@pytest.mark.parametrize("passes", [1, 3])
def test_any_homes_give_the_steps_of_the_model(mlp, mesh, passes):
    model, args, graph, offers = mlp
    gathers = reductions = 0
    for seed in range(5):
        options = {"micro_batches": passes, "zero": True, "offload": seed > 2, "offers": offers}
        plan = random_plan(graph, mesh=mesh, seed=seed, **options)
        assert sw.Plan.from_json(plan.to_json()) == plan
        report = sw.verify(model, args, plan=plan, steps=2, optimizer="adamw", only_plan=True)
        assert report.ok, report
        assert report.peak == report.predicted_peak
        if not plan.on_host:
            gathers, reductions = gathers + len(plan.once.gathers), reductions + len(plan.once.reductions)
    assert gathers and bool(reductions) == (passes > 1)


@pytest.mark.parametrize("mesh", ["d=3", "a=2,b=2"])
def test_what_runs_again_homes_and_sums_of_passes_go_together(mesh):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)) for _ in range(3)]
    model, args = nn.Sequential(*layers), (torch.rand(12, 8),)
    graph = sw.capture(model, args, recompute="auto")
    names = sorted(may_run_again(graph))
    ran = gathers = reductions = 0
    for seed in range(4):
        some = chosen_again(graph, random.Random(seed).sample(names, len(names) // 2))
        plan = random_plan(some, mesh=mesh, seed=seed, micro_batches=3, zero=True)
        report = sw.verify(model, args, plan=plan, steps=2, optimizer="adamw", only_plan=True)
        assert report.ok, report
        assert report.peak == report.predicted_peak
        ran += len(some.again)
        gathers, reductions = gathers + len(plan.once.gathers), reductions + len(plan.once.reductions)
    assert ran and gathers and reductions


def test_a_plan_under_a_limit_chooses_what_runs_again_and_what_is_held():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    model, args = nn.Sequential(layer), (torch.rand(64, 16),)
    graph = sw.capture(model, args, recompute="auto")
    options = {"mesh": "d=2", "cluster": "laptop", "micro_batches": 3, "zero": True}
    free = plan_graph(graph, **options, compare=False, confirm=False)
    memory = int(0.85 * free.cost.peak)
    plan = plan_graph(graph, **options, memory=memory, compare=False, confirm=False)
    assert plan.cost.peak <= memory and plan.graph.again and plan.homes
    report = sw.verify(model, args, plan=plan, steps=2, optimizer="adamw", only_plan=True)
    assert report.ok, report
    assert report.peak == report.predicted_peak


def test_gradients_that_are_one_tensor_are_added_up_apart(shared):
    model, args = shared
    graph = sw.capture(model, args)
    for seed in range(4):
        plan = random_plan(graph, mesh="a=2,b=2", seed=seed, micro_batches=2, zero=True)
        assert "scale" not in plan.homes
        report = sw.verify(model, args, plan=plan, steps=2, only_plan=True)
        assert report.ok, report


def test_a_sum_that_is_not_reduced_is_found(mlp, monkeypatch):
    """The comparison would notice gradients that stay partial."""
    from shardwise.verification import _train

    model, args, graph, offers = mlp
    plan = random_plan(graph, mesh="a=2,b=2", seed=0, offers=offers, micro_batches=2, zero=True)
    assert plan.once.reductions
    real = _train.moved

    def unreduced(change, pieces, record):
        made = real(change, pieces, record)
        return (
            replace(made, locals=tuple(local / 2 for local in made.locals))
            if change.source.reductions
            else made
        )

    monkeypatch.setattr(_train, "moved", unreduced)
    assert not sw.verify(model, args, plan=plan, only_plan=True).ok
