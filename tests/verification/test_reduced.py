"""Gradients that are reduced in float32: in every dtype and layout that a plan has for them, and as exact as that."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import capture, inputs_of, with_reduced_gradients
from shardwise.planning import plan_graph, random_plan
from shardwise.running import chosen_optimizer
from shardwise.verification._train import train

REDUCING = ("all_reduce", "reduce_scatter")
LAPTOP = sw.Cluster.of("laptop")
# On slow devices work is shared even in a model as small as this.
SLOW = replace(LAPTOP, device=replace(LAPTOP.device, flops=dict.fromkeys(LAPTOP.device.flops, 1e7)))


class Tied(nn.Module):
    """A parameter that is used twice, one that is scaled, and one whose parts are used."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.rand(8, 16))
        self.scale, self.parts = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(2, 16))

    def forward(self, x):
        first, second = self.parts.unbind(0)
        made = (x @ self.table + first).relu() * second
        return (made @ self.table.t() * self.scale.exp()).square().mean()


@pytest.fixture(scope="module")
def tied():
    torch.manual_seed(0)
    return Tied().bfloat16(), (torch.rand(64, 8).bfloat16(),)


def data_parallel(model, args, layout="R", **options):
    names = dict(model.named_parameters())
    pin = {"x": "S(0)", **dict.fromkeys(names, layout)}
    options |= {"cluster": SLOW, "compare": False, "confirm": False}
    return sw.plan(model, args, mesh="dp=4", pin=pin, **options)


def reduced_dtypes(plan):
    """The dtypes of what ranks add up in backward."""
    moves = [(plan.graph.tensor(m.source.ref), m.change) for m in plan.schedule.moves]
    moves += [(move.tensor, move.change) for move in plan.once.reductions]
    return {t.dtype for t, change in moves if any(step.kind in REDUCING for step in change.steps)}


@pytest.mark.parametrize(("layout", "zero", "passes"), [("R", False, 1), ("R", False, 3), ("S(0)", True, 3)])
def test_every_gradient_is_added_up_in_float32(tied, layout, zero, passes):
    model, args = tied
    own = data_parallel(model, args, layout, micro_batches=passes, zero=zero)
    plan = data_parallel(model, args, layout, micro_batches=passes, zero=zero, reduce="float32")
    assert reduced_dtypes(own) == {torch.bfloat16} and reduced_dtypes(plan) == {torch.float32}
    assert plan.bound <= plan.cost.seconds and plan.cost.seconds > own.cost.seconds
    read = sw.Plan.from_json(plan.to_json())
    assert read == plan
    report = sw.verify(model, args, plan=read, steps=2, optimizer="adamw", only_plan=True)
    assert report.ok, report
    assert report.peak == report.predicted_peak


def test_sums_of_many_passes_do_not_round(tied):
    model, args = tied
    graph = capture(model, args)
    given = inputs_of(graph, model, args, {})
    errors = {}
    for reduce in (None, "float32"):
        plan = plan_graph(graph, mesh="dp=2", micro_batches=24, reduce=reduce, compare=False, confirm=False)
        found = train(plan, given, 1, chosen_optimizer("sgd")).gradients
        exact = train(plan, given, 1, chosen_optimizer("sgd"), wide=True).gradients
        pairs = [(found[name].whole().double(), exact[name].whole()) for name in found if name != "x"]
        errors[reduce] = max(float((a - b).norm() / b.norm()) for a, b in pairs)
        assert {pieces.locals[0].dtype for pieces in found.values()} == {torch.bfloat16}
    assert errors["float32"] < errors[None] / 1.5


def test_random_plans_compute_the_same(tied):
    model, args = tied
    for passes in (1, 2):
        graph = with_reduced_gradients(capture(model, args), torch.float32, summed=passes > 1)
        for seed in range(3):
            plan = random_plan(graph, mesh="a=2,b=2", seed=seed, micro_batches=passes, zero=True)
            report = sw.verify(model, args, plan=plan, only_plan=True)
            assert report.ok, report
            assert report.peak == report.predicted_peak


def test_under_autocast_the_cast_of_a_gradient_comes_before_the_sum():
    model, x = nn.Linear(64, 64), torch.rand(64, 64)
    pin = {"input": "S(0)", "weight": "R", "bias": "R"}
    options = {"mesh": "dp=4", "cluster": SLOW, "pin": pin, "compare": False, "confirm": False}
    with torch.autocast("cpu", torch.bfloat16):
        own, wide = (sw.plan(model, (x,), reduce=reduce, **options) for reduce in (None, "float32"))
    assert reduced_dtypes(own) == {torch.bfloat16} and reduced_dtypes(wide) == {torch.float32}
    assert len(own.graph.nodes) == len(wide.graph.nodes)  # the casts are there


def test_gradients_that_are_wide_enough_stay_as_they_are():
    model, args = Tied(), (torch.rand(64, 8),)
    own, wide = (data_parallel(model, args, reduce=reduce) for reduce in (None, "float32"))
    assert wide.graph.nodes == own.graph.nodes and wide.cost == own.cost


def test_another_dtype_is_refused(tied):
    with pytest.raises(sw.UsageError, match="reduce is 'bfloat16': give 'float32', or leave it out"):
        data_parallel(*tied, reduce="bfloat16")


@pytest.mark.long
@pytest.mark.parametrize("passes", [1, 3])
def test_ranks_add_up_what_simulated_ranks_do(tied, passes):
    model, args = tied
    plan = data_parallel(model, args, "S(0)", micro_batches=passes, zero=True, reduce="float32")
    report = sw.verify(model, args, plan=plan, steps=2, optimizer="adamw", backend="gloo", only_plan=True)
    assert report.ok, report
