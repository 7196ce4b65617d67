"""Plans of programs that call grouped matrix products themselves."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwise as sw
from shardwise.planning import random_plan


class Experts(nn.Module):
    """Rows in runs, one for each expert, as those who write mixtures of experts call it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 16, 24, dtype=torch.bfloat16) / 4)
        self.down = nn.Parameter(torch.randn(4, 24, 16, dtype=torch.bfloat16) / 4)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        hidden = F.silu(F.grouped_mm(x, self.up, offs=ends))
        return F.grouped_mm(hidden, self.down, offs=ends).float().square().mean()


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    ends = torch.tensor([5, 5, 14, 22], dtype=torch.int32)
    model, args = Experts(), (torch.randn(22, 16, dtype=torch.bfloat16, requires_grad=True), ends)
    return model, args, sw.capture(model, args)


@pytest.mark.parametrize("mesh", ["ep=3", "dp=2,ep=2"])
def test_random_plans_compute_what_the_program_does(program, mesh):
    model, args, graph = program
    products = [node.name for node in graph.nodes if "grouped_mm" in node.op]
    assert len(products) == 6
    used = set()
    for seed in range(2):
        plan = random_plan(graph, mesh=mesh, seed=seed, replicated=0.0)
        used |= {row.text for name in products for row in plan.choices[name].rows}
        report = sw.verify(model, args, plan=plan, only_plan=True)
        assert report.ok, report
    assert len(used) > 3
