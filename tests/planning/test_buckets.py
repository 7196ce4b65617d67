"""Small collectives that run as one: which are joined, what it saves, and that results and memory are as planned."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import capture
from shardwise.mesh import Cluster, Mesh
from shardwise.planning import Move, Plan, Planner, Wait, random_plan
from shardwise.planning._buckets import Buckets
from shardwise.planning._overlap import with_overlap
from shardwise.planning._pins import Pins
from shardwise.planning._timeline import Running, links
from shardwise.redistribution import BUCKET

MESHES = ("d=4", "a=2,b=2", "a=3,b=2")


class Blocks(nn.Module):
    """Many small parameters beside large ones."""

    def __init__(self, width: int, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(blocks))
        )

    def forward(self, x):
        return self.blocks(x).square().mean()


@pytest.fixture(scope="module")
def small():
    return capture(Blocks(8), (torch.rand(12, 8),))


@pytest.fixture(scope="module")
def large():
    with torch.device("meta"):
        return capture(Blocks(2048).bfloat16(), (torch.empty(2**14, 2048, dtype=torch.bfloat16),))


@pytest.fixture(scope="module")
def baselines(large):
    planner = Planner(large, Mesh.parse("dp=8"), Cluster.of("h100"))
    found = planner.baselines(Pins(planner.mesh))
    return {name: plan for name, plan in found.items() if plan is not None}


@pytest.fixture(scope="module")
def plans(small):
    """Random plans with as much under way as can be."""
    return [replace(random_plan(small, mesh=mesh, seed=s), ahead=10**9) for mesh in MESHES for s in range(10)]


def buckets(plan: Plan) -> list[tuple[Move, ...]]:
    entries = plan.schedule.entries
    places = [
        place
        for place, entry in enumerate(entries)
        if isinstance(entry, Move) and entry.begun and not entry.joined
    ]
    return [bucket for place in places if len(bucket := plan.schedule.bucket(place)) > 1]


@pytest.fixture
def none_joined(monkeypatch):
    monkeypatch.setattr(Buckets, "joined", lambda self, found: iter(found))


@pytest.mark.parametrize("name", ["data parallel", "FSDP"])
def test_small_gradients_are_reduced_together(baselines, name):
    joined = buckets(with_overlap(baselines[name]))
    reduced = [
        {move.target.ref for move in bucket}
        for bucket in joined
        if bucket[0].change.collectives[0].kind in ("all_reduce", "reduce_scatter")
    ]
    assert max(map(len, reduced)) >= 6  # two vectors of a norm and a bias in each block


def test_buckets_save_time(baselines, none_joined, monkeypatch):
    alone = {name: with_overlap(plan).cost.seconds for name, plan in baselines.items()}
    monkeypatch.undo()
    for name, plan in baselines.items():
        assert with_overlap(plan).cost.seconds < alone[name]


def test_a_bucket_is_one_collective_of_few_bytes(plans, baselines):
    count = 0
    for plan in [*plans, *map(with_overlap, baselines.values())]:
        for bucket in buckets(plan):
            steps = [step for move in bucket for step in move.change.collectives]
            tensors = [plan.graph.tensor(move.source.ref) for move in bucket]
            assert len({(step.kind, step.axes) for step in steps}) == 1 and len(steps) == len(bucket)
            assert len({tensor.dtype for tensor in tensors}) == 1
            assert sum(step.size for step in steps) <= BUCKET
            reduced = {getattr(step.before.placements[step.axes[0]], "reduce_op", None) for step in steps}
            assert len(reduced) == 1
            count += 1
    assert count > 20


def test_a_bucket_takes_less_than_its_collectives_alone(plans):
    for plan in plans:
        own = {move.target: move.change for move in replace(plan, ahead=None).schedule.moves}
        for bucket in buckets(plan):
            alone = [own.get(move.target) for move in bucket]
            if all(change is not None and len(change.collectives) == 1 for change in alone):
                joined = sum(move.change.price for move in bucket)
                assert joined <= sum(change.price for change in alone)  # type: ignore[union-attr]


def test_what_is_joined_is_begun_together_and_ends_together(plans):
    for plan in plans:
        entries = plan.schedule.entries
        for place, entry in enumerate(entries):
            if isinstance(entry, Move) and entry.joined:
                before = entries[place - 1]
                assert isinstance(before, Move) and before.begun and entry.begun
        waited = [entry.move.target for entry in entries if isinstance(entry, Wait)]
        assert len(waited) == len(set(waited))
        for bucket in buckets(plan):
            running = Running(links(plan.mesh, plan.cluster))
            for number, move in enumerate(bucket):
                running.begin(number, move)
            (end,) = {running.ends(move.target) for move in bucket}
            assert end == pytest.approx(sum(move.change.price for move in bucket))


@pytest.mark.parametrize("mesh", MESHES)
def test_results_and_collectives_are_as_planned(small, mesh):
    joined = 0
    for seed in range(3):
        plan = replace(random_plan(small, mesh=mesh, seed=seed), ahead=10**9)
        joined += len(buckets(plan))
        report = sw.verify(Blocks(8), (torch.rand(12, 8),), plan=plan, only_plan=True)
        assert report.ok, report
    assert joined


def test_memory_is_as_planned(plans):
    """What a bucket holds longer than its moves would alone takes only what the plan leaves."""
    tight = 0
    for plan in plans:
        plain = replace(plan, ahead=None)
        limited = replace(plan, memory=plain.cost.peak)
        assert limited.cost.peak <= plain.cost.peak
        tight += len(buckets(limited)) < len(buckets(plan))
    assert tight


def test_buckets_run_on_real_ranks(small):
    plan = replace(random_plan(small, mesh="a=2,b=2", seed=1), ahead=10**9)
    kinds = {bucket[0].change.collectives[0].kind for bucket in buckets(plan)}
    assert kinds == {"all_gather", "reduce_scatter", "all_reduce"}
    report = sw.verify(Blocks(8), (torch.rand(12, 8),), plan=plan, only_plan=True, backend="gloo")
    assert report.ok, report
