"""The example models, Hugging Face's among them: each has rows for all it calls and runs sharded as it runs whole, and
two of them take ten steps on four real ranks with the same losses and parameters as in one process."""

from pathlib import Path

import pytest
import torch

from shardwise.graph import capture
from shardwise.modules import module_of
from shardwise.planning import plan_graph, random_plan
from shardwise.verification import verify

FILE = Path(__file__).parents[2] / "examples" / "models.py"
ZOO = module_of(FILE).ZOO
LARGE = ("llama", "lstm", "t5")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LARGE)) for name in ZOO]
)
def test_every_call_has_rows_and_both_a_plan_and_a_random_one_give_what_the_model_gives(name, slow_devices):
    torch.manual_seed(0)
    model, args, kwargs = ZOO[name]()
    graph = capture(model, args, kwargs)
    plan = plan_graph(graph, mesh="dp=2,tp=2", cluster=slow_devices, compare=False)
    assert [str(n.overload) for n in graph.nodes if plan.choices[n.name].source == "replicated"] == []
    # What is too small to be worth sharding is sharded at random all the same.
    anyhow = random_plan(graph, mesh="dp=2,tp=2", seed=0)
    on_each_axis = zip(*(choice.rows for choice in anyhow.choices.values()), strict=True)
    assert all(any(not row.is_replicated for row in rows) for rows in on_each_axis)
    for each in (plan, anyhow):
        report = verify(model, args, kwargs, plan=each, steps=2, only_plan=each is anyhow)
        assert report.ok, str(report)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_ten_steps(name, dtype, slow_devices):
    torch.manual_seed(0)
    model, _, kwargs = ZOO[name]()
    model = model.to(dtype)
    graph = capture(model, (), kwargs)
    plan = plan_graph(graph, mesh="dp=2,tp=2", cluster=slow_devices, compare=False)
    report = verify(model, (), kwargs, plan=plan, steps=10, optimizer="adamw", backend="gloo", only_plan=True)
    # Adam makes a step of full length even of a gradient that is rounding alone, as many are in bfloat16.
    tracked = {"loss", "output", "gradient"} | ({"parameter", "buffer"} if dtype == torch.float32 else set())
    assert all(check.ok for check in report.checks if check.kind in tracked), str(report)
    assert report.same_collectives
    assert report.steps == 10 and len([check for check in report.checks if check.kind == "loss"]) == 10
    assert report.collectives
    assert any(not layout.is_replicated for layout in plan.inputs.values())
