"""Steps of several micro-batches: priced as so many passes and one update, and equal to the model's own."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.errors import UsageError
from shardwise.verification._passes import of_pass

PASSES = 4


class Model(nn.Module):
    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.norm, self.dropout = nn.BatchNorm1d(16), nn.Dropout(dropout)

    def forward(self, x, target):
        return (self.norm(self.down(self.dropout(self.up(x).relu()))) - target).square().mean()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture(scope="module")
def args():
    return torch.rand(8, 16), torch.rand(8, 16)


@pytest.fixture(scope="module")
def plans(model, args):
    options = {"mesh": "dp=2,tp=2", "cluster": "laptop", "compare": False, "confirm": False}
    return [sw.plan(model, args, micro_batches=k, **options) for k in (1, PASSES)]


def test_a_step_is_so_many_passes_and_one_update(plans):
    one, several = plans
    same = replace(several, micro_batches=1)
    assert several.cost.compute == pytest.approx(PASSES * same.cost.compute)
    assert several.cost.update < PASSES * same.cost.update
    assert several.cost.seconds < PASSES * one.cost.seconds
    assert several.bound <= several.cost.seconds
    assert "a step of 4 micro-batches" in several.summary()


def test_gradients_of_passes_before_are_held(plans):
    several = plans[1]
    graph, ranks = several.graph, several.inputs
    gradients = sum(
        torch.empty(ranks[e.name].local_shape(e.tensor.shape)).nbytes for e in graph.with_role("parameter")
    )
    assert several.cost.lasting == replace(several, micro_batches=1).cost.lasting + gradients


def test_passes_have_other_arguments(args):
    first, second = of_pass(args, 0), of_pass(args, 1)
    assert first[0] is args[0]
    assert not torch.equal(second[0], args[0])
    assert torch.equal(second[0].sort(-1).values, args[0].sort(-1).values)


def test_the_plan_equals_the_model_with_the_same_accumulation(model, args, plans):
    plan = sw.Plan.from_json(plans[1].to_json())
    assert plan.micro_batches == PASSES
    report = sw.verify(model, args, plan=plan, steps=2, optimizer="adamw")
    assert report.ok, report
    assert report.peak == report.predicted_peak


def test_a_pass_that_is_left_out_is_found(model, args, plans, monkeypatch):
    """The comparison would notice gradients that are not added up."""
    from shardwise.verification import _train

    monkeypatch.setattr(_train, "sum_of", lambda before, now, accumulated: now)
    report = sw.verify(model, args, plan=plans[1], only_plan=True)
    assert not report.ok


def test_micro_batches_that_cannot_be_are_refused(model, args):
    with pytest.raises(UsageError, match="micro_batches is 0: give 1 or more"):
        sw.plan(model, args, mesh="d=2", micro_batches=0)
    with pytest.raises(UsageError, match="micro_batches is for training"):
        sw.plan(model, args, mesh="d=2", training=False, micro_batches=2)


@pytest.mark.long
def test_ranks_accumulate_as_the_model_does(model, args, plans):
    report = sw.verify(model, args, plan=plans[1], steps=2, optimizer="adamw", backend="gloo", only_plan=True)
    assert report.ok, report
