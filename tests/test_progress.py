"""Everything that takes long tells how far it is: stages in order, and counts that grow to their total."""

import pytest
import torch

import shardwise as sw
from shardwise.experiments import Crash, run_isolated
from shardwise.report import document


class Told:
    def __init__(self):
        self.lines = []

    def __call__(self, stage, done=0, total=None, *, limit=None, note=""):
        self.lines.append((stage, done, total, limit))

    @property
    def stages(self):
        return list(dict.fromkeys(stage for stage, *_ in self.lines))

    def counts(self, stage):
        return [(done, total) for name, done, total, _ in self.lines if name == stage]


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))


@pytest.fixture
def planned(model):
    return sw.plan(model, (torch.rand(4, 8),), mesh="dp=2", cluster="laptop", compare=False)


def test_planning_tells_its_stages(told, model):
    plan = sw.plan(model, (torch.rand(4, 8),), mesh="dp=2", cluster="laptop", time_limit=20, progress=told)
    assert told.stages == ["choices", "pricing", "searching", "baselines"]
    nodes = len(plan.graph.nodes)
    assert told.counts("choices") == [(n + 1, nodes) for n in range(nodes)]
    assert {limit for stage, *_, limit in told.lines if stage == "searching"} == {20}


def test_verification_counts_what_it_runs(told, model, planned):
    sw.verify(model, (torch.rand(4, 8),), plan=planned, steps=2, only_plan=True, progress=told)
    assert told.stages == ["running the model", "running the plan", "comparing"]
    total = 2 * len(planned.schedule.entries)
    assert told.counts("running the plan") == [(n, total) for n in range(total)]


def test_a_report_counts_what_it_draws(told, planned):
    document(planned, progress=told)
    total = len(planned.schedule.entries)
    assert told.counts("drawing") == [(n, total) for n in range(total)]


def test_a_child_process_tells_its_parent(told):
    def work(progress):
        progress("first", 1, 2)
        progress("second")
        return "done"

    assert run_isolated(work, progress=told) == "done"
    assert told.lines == [("first", 1, 2, None), ("second", 0, None, None)]


def test_a_child_that_falls_silent_is_given_up(told):
    def work(progress):
        progress("first")
        torch.multiprocessing.Event().wait()

    assert run_isolated(work, timeout=0.5, progress=told) == Crash("timeout")
