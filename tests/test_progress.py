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
def reported():
    return Told()


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))


@pytest.fixture
def planned(model):
    return sw.plan(model, (torch.rand(4, 8),), mesh="dp=2", cluster="laptop", compare=False)


def test_planning_reports_its_stages(reported, model):
    plan = sw.plan(
        model, (torch.rand(4, 8),), mesh="dp=2", cluster="laptop", time_limit=20, progress=reported
    )
    assert reported.stages == ["choices", "pricing", "searching", "baselines"]
    nodes = len(plan.graph.nodes)
    assert reported.counts("choices") == [(n + 1, nodes) for n in range(nodes)]
    assert all(0 < limit <= 16 for stage, *_, limit in reported.lines if stage == "searching")


def test_verification_counts_what_it_runs(reported, model, planned):
    sw.verify(model, (torch.rand(4, 8),), plan=planned, steps=2, only_plan=True, progress=reported)
    assert reported.stages == ["running the model", "running the plan", "comparing"]
    total = 2 * len(planned.schedule.entries)
    assert reported.counts("running the plan") == [(n, total) for n in range(total)]


def test_a_report_counts_what_it_draws(reported, planned):
    document(planned, progress=reported)
    total = len(planned.schedule.entries)
    assert reported.counts("drawing") == [(n, total) for n in range(total)]


def test_a_child_process_reports_to_its_parent(reported):
    def work(progress):
        progress("first", 1, 2)
        progress("second")
        return "done"

    assert run_isolated(work, progress=reported) == "done"
    assert reported.lines == [("first", 1, 2, None), ("second", 0, None, None)]


def test_a_child_that_falls_silent_is_given_up(reported):
    def work(progress):
        progress("first")
        torch.multiprocessing.Event().wait()

    assert run_isolated(work, timeout=0.5, progress=reported) == Crash("timeout")
