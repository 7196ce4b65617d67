"""Hugging Face models on four real ranks: ten steps, and the same losses and parameters as in one process."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from shardwise.graph import capture
from shardwise.plan import plan_graph
from shardwise.runtime import verify

FILE = Path(__file__).parents[2] / "examples" / "models.py"


@pytest.fixture(scope="module")
def zoo():
    spec = spec_from_file_location("runtime_models", FILE)
    sys.modules["runtime_models"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ZOO


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_ten_steps(zoo, name, dtype, slow_devices):
    torch.manual_seed(0)
    model, _, kwargs = zoo[name]()
    model = model.to(dtype)
    graph = capture(model, (), kwargs)
    plan = plan_graph(graph, mesh="dp=2,tp=2", cluster=slow_devices, compare=False)
    report = verify(model, (), kwargs, plan, steps=10, optimizer="adamw", backend="gloo")
    # Adam makes a step of full length even of a gradient that is rounding alone, as many are in bfloat16.
    tracked = {"loss", "output", "gradient"} | ({"parameter", "buffer"} if dtype == torch.float32 else set())
    assert all(check.ok for check in report.checks if check.kind in tracked), str(report)
    assert report.same_collectives
    assert report.steps == 10 and len([check for check in report.checks if check.kind == "loss"]) == 10
    assert report.collectives
    assert any(not layout.is_replicated for layout in plan.inputs.values())
