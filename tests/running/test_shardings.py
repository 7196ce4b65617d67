"""`shard_map` takes shardings in the language of propagation."""

import pytest
import torch

import shardwise as sw
from shardwise.errors import UsageError


def mlp(x, up, down):
    return torch.relu(x @ up) @ down


def test_what_no_spec_says_is_propagated_from_shardings():
    mapped = sw.shard_map(mlp, mesh="dp=2,tp=2", shardings={"x": "[{dp}, {}]", "up": "[{}, {tp}]"})
    x, up, down = torch.rand(8, 6), torch.rand(6, 12), torch.rand(12, 6)
    torch.testing.assert_close(mapped(x, up, down), mlp(x, up, down))
    plan = mapped.plan_for(x, up, down)
    found = [str(plan.inputs[entry.name]) for entry in plan.graph.with_role("user_input")]
    assert found == ["S(0), R", "R, S(1)", "R, S(0)"]
    assert [str(layout) for layout in plan.outputs] == ["S(0), R"]
    kinds = [(step.kind, step.axes) for move in plan.schedule.moves for step in move.change.collectives]
    assert kinds == [("all_reduce", (1,))]


def test_specs_hold_beside_shardings():
    mapped = sw.shard_map(
        mlp, mesh="dp=2,tp=2", in_specs=["S(0), R", None, None], shardings={"up": "[{}, {tp}]"}
    )
    args = torch.rand(8, 6), torch.rand(6, 12), torch.rand(12, 6)
    assert str(mapped.plan_for(*args).outputs[0]) == "S(0), R"
    twice = sw.shard_map(mlp, mesh="dp=2", in_specs=["S(0)", None, None], shardings={"x": "[{dp}, {}]"})
    with pytest.raises(UsageError, match="x is pinned and has a sharding as well"):
        twice(*args)
