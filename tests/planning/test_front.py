"""Meshes, micro-batches, what is computed again and layouts are chosen together."""

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.planning import GAP, plan_graph
from shardwise.planning._front import meshes_of, with_batch


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


@pytest.fixture(scope="module")
def model():
    with torch.device("meta"):
        return nn.Sequential(Block())


@pytest.fixture(scope="module")
def x():
    return torch.empty(4, 16, 64, device="meta")


OPTIONS = {"cluster": "laptop", "confirm": False}
LIMITS = ("600KB", "300KB", "10KB")


def step(model, x, mesh, micro_batches, memory):
    """The fastest plan of one setup, searched by itself."""
    samples = torch.empty(4 // micro_batches, *x.shape[1:], device="meta")
    options = {**OPTIONS, "memory": memory, "compare": False}
    graph = sw.capture(model, (samples,), recompute="auto")
    return plan_graph(graph, mesh=mesh, micro_batches=micro_batches, **options)


@pytest.fixture(scope="module")
def front(model, x):
    return sw.front(model, (x[:2],), devices=4, global_batch=4, limits=LIMITS, **OPTIONS)


def test_each_plan_holds_less_and_takes_longer_than_the_one_before(front):
    assert len(front.plans) > 1
    for plan, smaller in zip(front.plans, front.plans[1:], strict=False):
        assert smaller.cost.peak < plan.cost.peak and smaller.cost.seconds >= plan.cost.seconds
    assert all(plan.cost.peak <= plan.memory for plan in front.plans)
    assert {plan.mesh.ranks for plan in front.plans} == {4}
    samples = {
        plan.graph.with_role("user_input")[0].tensor.shape[0] * plan.micro_batches for plan in front.plans
    }
    assert samples == {4}


def test_no_setup_has_a_faster_plan(front, model, x):
    last = front.plans[-1]
    for mesh in ("dp=4", "dp=2,tp=2"):
        for micro_batches in (1, 2):
            try:
                plan = step(model, x, mesh, micro_batches, last.memory)
            except sw.UsageError:
                continue
            assert plan.cost.seconds >= last.cost.seconds * (1 - GAP), f"{mesh} x{micro_batches}"


def test_it_says_what_became_of_each_setup(front):
    text = str(front)
    assert "time of a step over memory" in text and "meshes and micro-batches" in text
    assert any(each.plan is None and each.why for each in front.tried)
    document = front.to_json()
    assert [each["seconds"] for each in document["front"]] == [plan.cost.seconds for plan in front.plans]
    assert len(document["tried"]) == len(front.tried)


def test_a_plan_chooses_its_micro_batches(model, x):
    options = {**OPTIONS, "mesh": "dp=2", "compare": False}
    one = sw.plan(model, (x,), global_batch=64, **options)
    assert one.micro_batches == 1 and one.graph.with_role("user_input")[0].tensor.shape == (64, 16, 64)
    several = sw.plan(model, (x,), global_batch=64, memory=one.cost.peak // 2, **options)
    assert several.micro_batches > 1 and several.cost.peak <= one.cost.peak // 2
    with pytest.raises(sw.UsageError, match="give global_batch"):
        sw.plan(model, (x,), micro_batches="auto", **options)


def test_where_nothing_fits_the_smallest_need_is_named(model, x):
    with pytest.raises(
        sw.UsageError, match=r"none of \d+ meshes and micro-batches has a plan; of dp=.*needs"
    ):
        sw.front(model, (x,), devices=4, memory="10KB", **OPTIONS)


def test_arguments_get_another_batch():
    x, y = torch.arange(6).view(3, 2), torch.rand(3, requires_grad=True)
    (a, b), kwargs = with_batch((x, [y]), {"scale": 2.0}, 5)
    assert torch.equal(a, torch.cat([x, x[:2]])) and b[0].shape == (5,) and b[0].requires_grad
    assert kwargs == {"scale": 2.0}
    with pytest.raises(sw.UsageError, match="all of one size: there are 3, 4"):
        with_batch((x, torch.rand(4)), {}, 5)


def test_meshes_of_devices():
    assert list(map(str, meshes_of(8, None))) == ["dp=8", "dp=4,tp=2", "dp=2,tp=4"]
    with pytest.raises(sw.UsageError, match="give either a mesh"):
        meshes_of(None, None)
