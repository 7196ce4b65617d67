"""Meshes, micro-batches, what is computed again and layouts are chosen together."""

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.planning import GAP
from shardwise.planning._front import meshes_of, with_batch

OPTIONS = {"cluster": "laptop", "confirm": False}


@pytest.fixture(scope="module")
def model():
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(1024, 4096, bias=False), nn.ReLU(), nn.Linear(4096, 1024, bias=False))


@pytest.fixture(scope="module")
def x():
    return torch.empty(3, 1024, device="meta")


@pytest.fixture(scope="module")
def front(model, x):
    limits = ["200MB", "100MB", "70MB"]
    return sw.front(model, (x,), devices=4, global_batch=8192, limits=limits, recompute="none", **OPTIONS)


def _samples(plan: sw.Plan) -> int:
    return plan.graph.with_role("user_input")[0].tensor.shape[0]


def test_each_plan_holds_less_and_takes_longer_than_the_one_before(front):
    assert [plan.memory for plan in front.plans] == [200_000_000, 100_000_000, 70_000_000]
    assert front.best is front.plans[0] and front.best.micro_batches == 1 < front.plans[1].micro_batches
    assert all(plan.cost.peak <= plan.memory for plan in front.plans)
    assert all(_samples(plan) * plan.micro_batches == 8192 for plan in front.plans)
    seconds = [plan.cost.seconds for plan in front.plans]
    assert seconds == sorted(seconds) and len(set(seconds)) == 3


def test_without_limits_plans_hold_less_and_less_down_to_the_least(model, x):
    given = {**OPTIONS, "global_batch": 512, "micro_batches": 1, "recompute": "none"}
    front = sw.front(model, (x,), devices=2, **given)
    peaks = [plan.cost.peak for plan in front.plans]
    assert len(peaks) > 1 and peaks == sorted(peaks, reverse=True)
    seconds = [plan.cost.seconds for plan in front.plans]
    assert seconds == sorted(seconds) and len(set(seconds)) == len(seconds)
    with pytest.raises(sw.UsageError, match="it needs"):
        sw.plan(model, (x,), devices=2, memory=peaks[-1] - 1, **given)


def test_no_other_mesh_and_number_of_micro_batches_is_faster(front, model, x):
    last = front.plans[-1]
    for mesh in ("dp=4", "dp=2,tp=2"):
        for passes in (2, 4, 8, 16):
            options = {**OPTIONS, "global_batch": 8192, "micro_batches": passes, "compare": False}
            try:
                plan = sw.plan(model, (x,), mesh=mesh, memory=last.memory, **options)
            except sw.UsageError:
                continue
            assert plan.micro_batches == passes
            assert plan.cost.seconds >= last.cost.seconds * (1 - GAP)


def test_it_says_what_became_of_each_setup(front):
    text = str(front)
    assert "time of a step over memory" in text and "meshes and micro-batches" in text
    assert any(each.plan is None and not each.why for each in front.tried) and "not searched" in text
    assert "needs at least" in text
    document = front.to_json()
    assert [each["seconds"] for each in document["front"]] == [plan.cost.seconds for plan in front.plans]
    assert len(document["tried"]) == len(front.tried)


def test_the_best_of_all_meshes_is_taken(model, x):
    options = {**OPTIONS, "training": False, "compare": False}
    best = sw.plan(model, (x,), devices=4, **options)
    others = [sw.plan(model, (x,), mesh=mesh, **options) for mesh in ("dp=4", "dp=2,tp=2")]
    assert best.cost.seconds <= min(other.cost.seconds for other in others) * (1 + GAP)


def test_where_nothing_fits_the_smallest_need_is_named(model, x):
    with pytest.raises(
        sw.UsageError, match=r"none of 2 meshes and micro-batches has a plan; of dp=.*it needs"
    ):
        sw.plan(model, (x,), devices=4, training=False, memory="1KB", **OPTIONS)


def test_a_batch_is_needed_to_divide_it(model, x):
    with pytest.raises(sw.UsageError, match="give global_batch"):
        sw.plan(model, (x,), mesh="dp=2", micro_batches="auto")
    with pytest.raises(sw.UsageError, match="global_batch is 6, which 4 micro-batches do not divide"):
        sw.plan(model, (x,), mesh="dp=2", micro_batches=4, global_batch=6)


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
