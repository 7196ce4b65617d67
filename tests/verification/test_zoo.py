"""Every architecture of the zoo, sharded by the planner and at random, equals itself unsharded."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shardwise.graph import capture
from shardwise.modules import module_of
from shardwise.planning import Offers, plan_graph, random_plan
from shardwise.verification import verify

FILE = Path(__file__).parents[2] / "examples" / "zoo.py"
zoo = module_of(FILE)

MESHES = ["d=4", "a=2,b=2"]
SAMPLE = [
    "uneven_linear",
    "tied_weights",
    "batch_norm",
    "embedding",
    "mixture_of_experts",
    "attention_dropout",
]
ON_GLOO = [
    *("uneven_linear", "gated", "tied_weights", "batch_norm", "pooling"),
    *("transformer_block", "embedding", "mixture_of_experts", "dropout", "sorting"),
]


def built(name):
    torch.manual_seed(0)
    model, args, kwargs = zoo.ZOO[name]()
    return model, args, kwargs, capture(model, args, kwargs)


def check(name, seeds, cluster):
    model, args, kwargs, graph = built(name)
    offers = Offers(graph)
    sent = 0
    for mesh in MESHES:
        plans = [plan_graph(graph, mesh=mesh, cluster=cluster, compare=False)]
        plans += [random_plan(graph, mesh=mesh, seed=seed, offers=offers) for seed in seeds]
        for number, plan in enumerate(plans):
            report = verify(model, args, kwargs, plan=plan, steps=2, only_plan=number > 0)
            assert report.ok, (
                f"{name} on {mesh}, {f'random plan {number - 1}' if number else 'plan'}:\n{report}"
            )
            sent += len(report.collectives)
    assert sent


def check_overlapped(name, seeds):
    """Random plans with collectives beside calls, the small ones in buckets, as much under way as can be."""
    model, args, kwargs, graph = built(name)
    offers, begun, joined = Offers(graph), 0, 0
    for mesh in MESHES:
        for seed in seeds:
            plan = replace(random_plan(graph, mesh=mesh, seed=seed, offers=offers), ahead=10**9)
            report = verify(model, args, kwargs, plan=plan, steps=2, only_plan=True)
            assert report.ok, f"{name} on {mesh}, random plan {seed}, overlapped:\n{report}"
            begun += sum(move.begun for move in plan.schedule.moves)
            joined += sum(move.joined for move in plan.schedule.moves)
    return begun, joined


def test_there_are_enough_architectures():
    assert len(zoo.ZOO) >= 32


@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name, slow_devices):
    check(name, range(1), slow_devices)


@pytest.mark.long
@pytest.mark.parametrize("name", zoo.ZOO)
def test_all_by_the_planner_and_by_ten_random_plans(name, slow_devices):
    check(name, range(10), slow_devices)


def test_sample_with_overlap():
    found = [check_overlapped(name, range(1)) for name in SAMPLE]
    assert sum(begun for begun, _ in found) > sum(joined for _, joined in found) > 0


@pytest.mark.long
@pytest.mark.parametrize("name", zoo.ZOO)
def test_all_with_overlap_by_ten_random_plans(name):
    check_overlapped(name, range(10))


@pytest.mark.long
@pytest.mark.parametrize("name", ON_GLOO)
def test_on_real_ranks(name):
    model, args, kwargs, graph = built(name)
    plan = random_plan(graph, mesh="a=2,b=2", seed=1)
    report = verify(
        model, args, kwargs, plan=plan, steps=2, backend="gloo", build=zoo.ZOO[name], only_plan=True
    )
    assert report.ok, str(report)
    assert report.collectives
