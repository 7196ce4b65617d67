"""Plans whose calls communicate inside, on simulated and on real ranks."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwise as sw
from shardwise.calls import Call
from shardwise.forms import is_communicating
from shardwise.placements import Row, is_shard
from shardwise.planning import Offers, Plan, random_plan
from shardwise.rules import book_rows


class Attention(nn.Module):
    """Grouped causal attention, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        heads = (
            part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).square().mean()


def talking(call: Call) -> list[Row] | None:
    """Rows of a call; attention communicates where its sequence is sharded."""
    rows = book_rows(call)
    if rows is None or "attention" not in call.name:
        return rows
    along = [row for row in rows if any(is_shard(p) and p.dim == 2 for p in row.inputs)]
    return [row for row in rows if is_communicating(row.local) or row not in along]


def forms(plan: Plan) -> list[str | None]:
    return [plan.choices[node.name].local for node in plan.graph.nodes if "attention" in node.op]


@pytest.fixture(scope="module")
def captured():
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(2, 9, 16)
    return model, x, sw.capture(model, (x,))


def planned(graph, mesh: str, seeds=range(40)) -> Plan:
    """A random plan in which attention communicates, forward and backward."""
    plans = (random_plan(graph, mesh=mesh, seed=s, offers=Offers(graph, known=talking)) for s in seeds)
    return next(plan for plan in plans if all(map(is_communicating, forms(plan))))


@pytest.mark.parametrize("mesh", ["cp=2", "cp=3", "cp=4", "dp=2,cp=2", "cp=2,tp=2", "a=2,cp=2,b=2"])
def test_ranks_attend_together_on_any_mesh(captured, mesh):
    model, x, graph = captured
    plan = planned(graph, mesh)
    report = sw.verify(model, (x,), plan=plan, only_plan=True)
    assert report.ok, report
    assert plan.cost.seconds == pytest.approx(sum(plan.cost.entries) + plan.cost.update + plan.cost.waiting)


def test_ranks_attend_together_on_gloo(captured):
    model, x, graph = captured
    report = sw.verify(model, (x,), plan=planned(graph, "cp=4"), only_plan=True, backend="gloo")
    assert report.ok, report  # the collectives and their bytes are those that were priced
