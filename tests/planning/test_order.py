"""What only gradients of parameters need comes later in a step whose collectives run beside calls."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import capture
from shardwise.planning import Move, Plan, plan_graph
from shardwise.planning._order import LATE, with_late_gradients
from shardwise.planning._overlap import with_overlap
from shardwise.planning._schedule import hides


class Stack(nn.Module):
    def __init__(self, layers: int = 4, width: int = 8) -> None:
        super().__init__()
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width, bias=False) for _ in range(layers))

    def forward(self, x):
        for up, down in zip(self.ups, self.downs, strict=True):
            x = x + down(torch.relu(up(x)))
        return x.square().mean()


@pytest.fixture(scope="module")
def graph():
    return capture(Stack(), (torch.rand(8, 8),))


def weights(graph):
    """The products that are gradients of parameters."""
    given = {output.value.name for output in graph.outputs if output.role == "gradient"}
    return {
        node.name
        for node in graph.nodes
        if hides(node) and (node.name in given or any(user.name in given for user in users(graph, node)))
    }


def users(graph, node):
    return [user for ref in node.results for user in graph.users.get(ref, ())]


def test_products_for_gradients_of_parameters_let_two_others_go_first(graph):
    own, later = weights(graph), with_late_gradients(graph)
    assert len(own) == 8
    large = [node.name for node in graph.nodes if hides(node) and node.phase == "backward"]
    moved = [node.name for node in later.nodes if hides(node) and node.phase == "backward"]
    others = [name for name in large if name not in own]
    for name in own & set(moved):
        before = sum(other in others for other in large[: large.index(name)])
        assert sum(other in others for other in moved[: moved.index(name)]) == min(before + LATE, len(others))


def test_nothing_else_changes_its_order_and_everything_comes_after_what_it_reads(graph):
    own, later = weights(graph), with_late_gradients(graph)
    assert later != graph
    assert sorted(node.name for node in later.nodes) == sorted(node.name for node in graph.nodes)
    place = {node.name: at for at, node in enumerate(later.nodes)}
    follows = own | {user.name for name in own for user in users(graph, graph[name])}
    kept = [node.name for node in graph.nodes if node.name not in follows]
    assert [node.name for node in later.nodes if node.name in set(kept)] == kept
    assert all(
        place[ref.name] < place[node.name] for node in later.nodes for ref in node.inputs if ref.name in place
    )


def test_collectives_of_tensor_parallelism_run_beside_them():
    """With the order in which the model was captured calls wait longer."""
    with torch.device("meta"):
        captured = capture(Stack(width=2048), (torch.empty(2**14, 2048),))
    pins = {"ups.*": "S(0)", "downs.*": "S(1)", "x": "R"}
    plan = plan_graph(
        captured, mesh="tp=4", cluster="h100", pin=pins, overlap=True, compare=False, confirm=False
    )
    before = with_overlap(replace(plan, graph=captured, ahead=None))
    assert plan.timeline.exposed["tp"] < 0.8 * before.timeline.exposed["tp"]
    assert plan.cost.seconds < before.cost.seconds
    assert plan.bound is not None and plan.bound <= plan.cost.seconds


def test_a_plan_from_a_file_runs_in_its_own_order(tmp_path):
    model, args = Stack(), (torch.rand(8, 8),)
    made = sw.plan(model, args, mesh="a=2,b=2", overlap=True, compare=False)
    made.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.graph.nodes == made.graph.nodes != capture(model, args).nodes
    report = sw.verify(model, args, plan=loaded)
    assert report.ok
    ran = sw.running.with_live_graph(loaded, model, args, {})
    assert [str(entry) for entry in ran.schedule.entries] == [str(entry) for entry in made.schedule.entries]


def test_reductions_in_a_wider_dtype_run_beside_calls():
    """Gradients are cast back when their reduction has had time to end."""
    with torch.device("meta"):
        model, x = Stack(layers=8, width=2048).bfloat16(), torch.empty(2**15, 2048, dtype=torch.bfloat16)
    pins = {"x": "S(0)", "ups.*.weight": "S(0)", "downs.*.weight": "S(0)"}
    options = {"mesh": "fsdp=8", "cluster": "h100", "compare": False, "confirm": False, "overlap": True}
    plan = sw.plan(model, (x,), pin=pins, reduce="float32", **options)
    assert sum(output.dtype is torch.bfloat16 for output in gradients(plan)) == 16
    busy = waited = 0.0
    for place, entry in enumerate(plan.schedule.entries):
        if isinstance(entry, Move) and any(step.kind == "reduce_scatter" for step in entry.change.steps):
            busy += entry.change.price
            waited += plan.timeline.waited.get(place, 0.0)
    assert busy and waited < 0.3 * busy


def gradients(plan):
    return [plan.graph.tensor(output.value) for output in plan.graph.outputs if output.role == "gradient"]
