"""Branches by `torch.cond`: both are in the graph, and values and gradients are those of the branch that is taken."""

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import branches_as_taken, capture, run
from shardwise.planning import random_plan


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, sign):
        y = self.linear(x)

        def root(z):
            return {"y": z.sqrt(), "n": z.detach().sum()}

        def line(z):
            return {"y": 3 * z, "n": z.detach().mean()}

        made = torch.cond((y.sum() * sign > 0).reshape(1), root, line, (y.abs() * (sign > 0),))
        return made["y"].sum() + made["n"]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_branch_that_is_taken_counts(sign):
    torch.manual_seed(0)
    model, args = Branches(), (torch.randn(3, 4), torch.tensor(sign))
    with torch.no_grad():
        model.linear.bias += 5.0
    graph = capture(model, args)
    ran = run(graph, model, args)
    with branches_as_taken():
        loss = model(*args)
    loss.backward()
    torch.testing.assert_close(ran.outputs["output"], loss.detach())
    # The root of zero, which is not taken, has no gradient.
    torch.testing.assert_close(ran.gradients["linear.weight"], model.linear.weight.grad)
    assert torch.isfinite(model.linear.weight.grad).all()
    assert graph.notes == ("both branches of torch.cond are computed, and the results of one are taken",)
    assert torch.cond.__module__.startswith("torch")
    assert sw.verify(model, args, plan=random_plan(graph, mesh="a=2", seed=0), only_plan=True).ok


def test_a_branch_on_a_python_number_is_taken_alone():
    def program(x):
        return torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,))

    graph = capture(program, (torch.randn(3, requires_grad=True),))
    assert not any(node.op.startswith("aten.where") for node in graph.nodes) and not graph.notes
