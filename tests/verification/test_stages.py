"""Pipelines against the unsharded model, on simulated and on real ranks."""

from dataclasses import replace

import pytest
import torch

import shardwise as sw
from shardwise.expansion import Choice
from shardwise.placements import Row
from shardwise.planning import Pipeline, joined
from tests.staged import MODELS
from tests.versions import from_torch


def planned(
    name: str, mesh: str, schedule: str = "1F1B", **options
) -> tuple[torch.nn.Module, tuple, Pipeline]:
    model, args = MODELS[name]()
    given = {"cluster": "laptop", "micro_batches": 4, "schedule": schedule, "confirm": False, **options}
    return model, args, sw.plan(model, args, mesh=mesh, **given)


@pytest.mark.parametrize("name", MODELS)
def test_pipelines_compute_what_the_model_computes(name):
    model, args, pipeline = planned(name, "pp=2,tp=2")
    report = sw.verify(model, args, plan=pipeline, steps=2)
    assert report.ok, report
    assert report.most_sharded is not None and report.most_sharded.sharded > 0.8 * report.calls


def test_a_wrong_stage_is_found():
    """A stage whose parts are those of another cut computes something else."""
    model, args, pipeline = planned("frozen", "pp=2")
    cut = next(number for number in range(1, 4) if number != pipeline.cuts[1])
    with pytest.raises(sw.UsageError, match="the plan is for another model"):
        sw.verify(model, args, plan=replace(pipeline, cuts=(0, cut, 4)))


def test_a_wrong_call_of_a_stage_is_named():
    """What each rank has is taken for a part of a sum: the whole is twice as much."""
    model, args, pipeline = planned("turned", "pp=2,tp=2")
    for number, stage in enumerate(pipeline.stages):
        [*_, tanh] = [node.name for node in stage.graph.nodes if node.op == "aten.tanh.default"]
        wrong = Choice(stage.mesh, (Row.parse("R -> P(sum)"),))
        broken = replace(stage, choices={**stage.choices, tanh: wrong})
        stages = (*pipeline.stages[:number], broken, *pipeline.stages[number + 1 :])
        report = sw.verify(model, args, plan=replace(pipeline, stages=stages), only_plan=True)
        assert not report.ok
        assert report.verdict.reason.startswith(f"first wrong call: stage {number}: %{tanh} = aten.tanh")


@from_torch("2.12", "V-shaped schedules begin with a message from a rank to itself, which gloo refuses")
@pytest.mark.parametrize(
    ("name", "mesh", "schedule"), [("tied", "pp=2,tp=2", "ZBVZeroBubble"), ("turned", "pp=2", "1F1B")]
)
def test_real_ranks_run_the_actions_that_were_simulated(name, mesh, schedule):
    """Stages of the first are joined by a parameter at one place; what crosses in the second is not contiguous."""
    model, args, pipeline = planned(name, mesh, schedule)
    report = sw.verify(model, args, plan=pipeline, steps=2, backend="gloo", only_plan=True)
    assert report.ok, report


@pytest.mark.long
@pytest.mark.parametrize("mesh", ["pp=4", "pp=2,tp=2", "pp=2,dp=2"])
@pytest.mark.parametrize("schedule", ["1F1B", "Interleaved1F1B", "ZBVZeroBubble"])
@pytest.mark.parametrize("name", MODELS)
def test_schedules_on_real_ranks(name, mesh, schedule):
    if mesh == "pp=4" and schedule != "1F1B":
        pytest.skip("8 stages need more parts than these models have")
    model, args, pipeline = planned(name, mesh, schedule)
    assert sw.verify(model, args, plan=pipeline, steps=3, backend="gloo", only_plan=True).ok


def test_layouts_that_do_not_meet_are_found():
    model, args, pipeline = planned("frozen", "pp=2,tp=2")
    first, second = pipeline.stages
    crossing = next(e for e in second.graph.with_role("user_input") if e.target.startswith("boundary"))
    inputs = {**second.inputs, crossing.name: sw.Layout.parse("S(1)", second.mesh)}
    if inputs == second.inputs:
        inputs[crossing.name] = sw.Layout.parse("S(0)", second.mesh)
    apart = replace(pipeline, stages=(first, replace(second, inputs=inputs)))
    with pytest.raises(sw.UsageError, match="crosses between two stages as"):
        sw.verify(model, args, plan=apart, only_plan=True)
    together = replace(apart, stages=joined(apart.stages))
    assert sw.verify(model, args, plan=together, only_plan=True).ok
