"""When calls and collectives run, and plans that are chosen by it."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import Node, capture
from shardwise.mesh import Cluster, Mesh
from shardwise.planning import Compute, Move, Plan, Planner, Wait, _timeline, random_plan
from shardwise.planning._pins import Pins
from shardwise.planning._prices import SLOWDOWN
from shardwise.planning._timeline import CALLS, links, timeline

CLUSTER = Cluster.of("h100")


class Stack(nn.Module):
    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))

    def forward(self, x):
        return torch.relu(self.layers(x)).mean()


@pytest.fixture(scope="module")
def graph():
    with torch.device("meta"):
        return capture(Stack(), (torch.empty(2**13, 1024),))


@pytest.fixture(scope="module")
def fsdp(graph):
    planner = Planner(graph, Mesh.parse("d=4"), CLUSTER)
    made = planner.baselines(Pins(planner.mesh))["FSDP"]
    assert made is not None
    return made


@pytest.fixture(scope="module")
def best(graph):
    return Planner(graph, Mesh.parse("dp=2,tp=2"), CLUSTER, overlap=True).plan({})


def test_a_plan_without_overlap_takes_as_long_as_its_entries_together(fsdp):
    assert fsdp.timeline.seconds == pytest.approx(sum(fsdp.cost.entries))
    assert sum(fsdp.timeline.exposed.values()) == pytest.approx(sum(fsdp.cost.communication.values()))
    assert fsdp.cost.hidden == 0


def test_collectives_beside_calls_save_their_time_less_what_they_slow_the_calls(fsdp):
    made = fsdp.overlapped()
    line, cost = made.timeline, made.cost
    busy, exposed = line.busy["d"], line.exposed["d"]
    assert 0 < exposed < 0.7 * busy
    slower = line.seconds - cost.compute - exposed
    assert slower == pytest.approx((busy - exposed) * SLOWDOWN / (1 + SLOWDOWN))
    assert cost.hidden == pytest.approx(busy - exposed - slower)
    assert cost.seconds == pytest.approx(line.seconds + cost.update + cost.waiting)
    assert cost.seconds < fsdp.cost.seconds


def test_streams_do_one_thing_at_a_time_and_calls_never_rest(graph):
    for seed in range(5):
        line = random_plan(graph, mesh="a=2,b=2", seed=seed).overlapped().timeline
        for stream in {span.stream for span in line.spans}:
            own = [span for span in line.spans if span.stream == stream]
            for one, other in pairwise(own):
                assert one.end <= other.start + 1e-12
                assert stream != CALLS or one.end == other.start
        assert line.seconds == max(span.end for span in line.spans)


def test_axes_that_use_one_link_share_its_stream():
    assert links(Mesh.parse("dp=2,pp=2,tp=8"), CLUSTER) == ("dp+pp", "dp+pp", "tp")
    assert links(Mesh.parse("dp=2,tp=2"), CLUSTER) == ("dp+tp", "dp+tp")
    assert links(Mesh.parse("d=16"), CLUSTER) == ("d",)


@pytest.mark.parametrize("mesh", ["d=4", "dp=2,tp=8"])
def test_no_plan_takes_less_than_the_bound(graph, mesh):
    planner = Planner(graph, Mesh.parse(mesh), CLUSTER, overlap=True)
    made = planner.plan({})
    assert made.bound is not None and 0 < made.bound <= made.cost.seconds
    others = [random_plan(graph, mesh=mesh, seed=seed) for seed in range(10)]
    tried = [replace(plan, optimizer="adam").overlapped() for plan in others]
    tried += [plan for plan in planner.baselines(Pins(planner.mesh)).values() if plan is not None]
    assert all(made.bound <= plan.cost.seconds for plan in tried)


def test_a_plan_with_overlap_is_as_fast_as_any_other_found(graph, best):
    plain = Planner(graph, best.mesh, CLUSTER).plan({})
    assert best.cost.seconds <= plain.overlapped().cost.seconds
    for cost in best.baselines.values():
        assert best.cost.seconds <= cost.seconds
    assert best.baselines["FSDP"].hidden > 0
    assert best.baselines["FSDP"].seconds < plain.baselines["FSDP"].seconds


def test_a_plan_with_overlap_can_be_kept(best):
    assert Plan.from_json(replace(best, ahead=None, bound=None).overlapped().to_json()).ahead == best.ahead
    again = Plan.from_json(best.to_json())
    assert again.cost == best.cost and again.baselines == best.baselines and again.ahead == best.ahead


def test_the_summary_says_what_is_hidden(fsdp):
    text = fsdp.overlapped().summary()
    assert "waiting for d" in text and "beside calls" in text and "slower beside collectives" in text


def test_a_trace_has_every_span(fsdp, tmp_path):
    made = fsdp.overlapped()
    made.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kinds = Counter(event.get("cat") for event in events)
    spans = made.timeline.spans
    assert kinds["collective"] == sum(span.stream != CALLS for span in spans)
    assert kinds["exposed"] == sum(bool(span.link) for span in spans) > 0
    assert kinds["call"] == len(made.choices)
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {"calls", "d"}


def test_overlap_is_an_option_of_plan():
    model, args = nn.Linear(16, 16), (torch.rand(8, 16),)
    made = sw.plan(model, args, mesh="d=2", cluster="laptop", overlap=True, confirm=False)
    assert made.ahead is not None
    assert sw.plan(model, args, mesh="d=2", cluster="laptop", confirm=False).ahead is None


def test_an_overlapped_plan_explains_what_calls_wait_for(fsdp):
    text = " ".join(fsdp.overlapped().explain("addmm_1").split())
    needed = "needs all_gather over d of layers.*.bias: [S(0)] -> [R], 22 ns of 45.80 us for 4 as one, beside calls"
    assert f"{needed} rows" in text
    text = " ".join(fsdp.overlapped().explain("layers.0.weight").split())
    assert ", waited for at once" in text  # nothing comes before the first product
    assert "needs" not in fsdp.explain("addmm_1")


@pytest.fixture(scope="module")
def two_layers():
    """Two products, each of which needs a gathered weight."""

    def run(x, v, w):
        return torch.relu(x @ v) @ w

    with torch.device("meta"):
        args = torch.empty(2**13, 1024), torch.empty(1024, 1024), torch.empty(1024, 1024)
    pins = {"x": "S(0)", "v": "S(0)", "w": "S(0)", "mm": "S(0)", "mm_1": "S(0)"}
    return sw.plan(
        run, args, mesh="d=4", cluster="h100", training=False, pin=pins, compare=False, confirm=False
    )


def in_milliseconds(plan: Plan, calls: float, gathers: float) -> float:
    """The step if each product and each gather took so long."""

    def timed(move: Move) -> Move:
        steps = tuple(replace(step, seconds=gathers * 1e-3) for step in move.change.steps)
        return replace(move, change=replace(move.change, steps=steps))

    entries = []
    for entry in plan.schedule.entries:
        entry = timed(entry) if isinstance(entry, Move) else entry
        entries.append(Wait(timed(entry.move)) if isinstance(entry, Wait) else entry)
    seconds = [
        calls * 1e-3 if isinstance(entry, Compute) and entry.node.facts.kernel == "matmul" else 0.0
        for entry in entries
    ]
    made = replace(plan.schedule, entries=tuple(entries))
    return timeline(made, seconds, plan.mesh, plan.cluster).seconds * 1e3


def test_64_the_second_gather_runs_beside_the_first_of_two_layers(two_layers, monkeypatch):
    monkeypatch.setattr(_timeline, "SLOWDOWN", 0.0)
    assert in_milliseconds(two_layers, 10, 6) == pytest.approx(32)
    overlapped = [in_milliseconds(replace(two_layers, ahead=10**n), 10, 6) for n in range(10)]
    assert overlapped[-1] == pytest.approx(26)
    assert min(overlapped) == pytest.approx(26)


def test_65_the_second_gather_waits_where_both_weights_do_not_fit(two_layers, monkeypatch):
    monkeypatch.setattr(_timeline, "SLOWDOWN", 0.0)
    both = replace(two_layers, ahead=10**9)
    least, most = two_layers.cost.peak, both.cost.peak
    assert least < most
    assert in_milliseconds(replace(both, memory=most), 10, 6) == pytest.approx(26)
    limited = replace(both, memory=most - 1)
    assert limited.cost.peak <= most - 1
    assert in_milliseconds(limited, 10, 6) == pytest.approx(32)


def test_66_nothing_runs_beside_the_reduction_of_the_last_gradient(fsdp):
    made = fsdp.overlapped()
    last = max(place for place, e in enumerate(made.schedule.entries) if isinstance(e, Move))
    move = made.schedule.entries[last]
    assert isinstance(move, Move)
    maker = made.graph[move.source.ref.name]
    assert isinstance(maker, Node) and maker.phase == "backward"
    assert not any(
        isinstance(entry, Compute) and cost
        for entry, cost in zip(made.schedule.entries[last:], made.cost.entries[last:], strict=True)
    )
    assert made.timeline.waited[last] == pytest.approx(move.change.price)


def test_baselines_that_do_not_fit_are_overlapped_too(graph):
    """They are compared as they would run, had they the memory."""
    mesh = Mesh.parse("d=4")
    enough = Planner(graph, mesh, CLUSTER, overlap=True).plan({})
    most = max(cost.peak for cost in enough.baselines.values() if cost is not None)
    least = min(cost.peak for cost in enough.baselines.values() if cost is not None)
    tight = Planner(graph, mesh, CLUSTER, overlap=True, memory=(least + most) // 2).plan({})
    over = [name for name, cost in tight.baselines.items() if cost is not None and cost.peak > tight.memory]
    assert over
    for name in over:
        assert tight.baselines[name].hidden == pytest.approx(enough.baselines[name].hidden)
