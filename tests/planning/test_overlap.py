"""Schedules whose collectives run beside calls: what is begun early or waited for late, and what that holds."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import capture
from shardwise.mesh import Cluster, Mesh
from shardwise.planning import Compute, Move, Plan, Planner, Wait, backward_entries, plan_graph, random_plan
from shardwise.planning._pins import Pins


class Stack(nn.Module):
    def __init__(self, layers: int = 3, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))

    def forward(self, x):
        return torch.relu(self.layers(x)).mean()


MODEL, ARGS = Stack(), (torch.rand(8, 8),)
MESHES = ("d=4", "a=2,b=2", "a=3,b=2")


@pytest.fixture(scope="module")
def graph():
    return capture(MODEL, ARGS)


@pytest.fixture(scope="module")
def fsdp():
    """Sizes for which FSDP pays: parameters are gathered before calls, gradients reduced after them."""
    with torch.device("meta"):
        graph = capture(Stack(width=1024), (torch.empty(2**15, 1024),))
    planner = Planner(graph, Mesh.parse("d=4"), Cluster.of("h100"))
    made = planner.baselines(Pins(planner.mesh))["FSDP"]
    assert made is not None
    return made


@pytest.fixture(scope="module")
def plans(graph):
    """Random plans, each also with as much under way as can be."""
    made = [random_plan(graph, mesh=mesh, seed=seed) for mesh in MESHES for seed in range(10)]
    return [(plan, replace(plan, ahead=10**9)) for plan in made]


def calls(plan: Plan, *, views: bool) -> list[str]:
    made = [entry for entry in plan.schedule.entries if isinstance(entry, Compute)]
    return [entry.node.name for entry in made if entry.node.facts.view == views]


def test_parameters_are_gathered_while_the_call_before_runs(fsdp):
    entries = [str(entry) for entry in replace(fsdp, ahead=10**8).schedule.entries]
    begin = next(at for at, text in enumerate(entries) if text.startswith("begin %layers_1_weight"))
    call = next(at for at, text in enumerate(entries) if text.startswith("%addmm ="))
    wait = next(at for at, text in enumerate(entries) if text.startswith("wait for %layers_1_weight"))
    assert begin < call < wait


def test_reductions_of_gradients_are_waited_for_at_the_end(fsdp):
    schedule = replace(fsdp, ahead=10**8).schedule
    last_call = max(at for at, entry in enumerate(schedule.entries) if isinstance(entry, Compute))
    ended = [entry.move.target for entry in schedule.entries[last_call:] if isinstance(entry, Wait)]
    gradients = set(schedule.outputs[1:])
    assert len(gradients.intersection(ended)) == 2  # those of weights with a product after them


@pytest.mark.parametrize("ahead", [5 * 10**6, 10**7])
def test_no_more_is_under_way_beside_a_call_than_was_allowed(fsdp, ahead):
    early: Counter[str] = Counter()
    most = 0
    for entry in replace(fsdp, ahead=ahead).schedule.entries:
        if isinstance(entry, Move) and entry.begun:
            early[entry.change.collectives[0].kind] += entry.change.collectives[0].size
        elif isinstance(entry, Wait):
            step = entry.move.change.collectives[0]
            early[step.kind] -= step.size
        elif isinstance(entry, Compute):
            most = max(most, early["all_gather"], early["reduce_scatter"])
    assert 0 < most <= ahead


def test_what_was_begun_is_waited_for_once_and_before_it_is_used(plans):
    for _, overlapped in plans:
        under_way: set[object] = set()
        for entry in overlapped.schedule.entries:
            assert under_way.isdisjoint(entry.used) or isinstance(entry, Wait)
            if isinstance(entry, Move) and entry.begun:
                under_way.add(entry.target)
            elif isinstance(entry, Wait):
                under_way.remove(entry.move.target)
        assert not under_way


def in_backward(plan: Plan) -> list[bool]:
    outputs = zip(plan.graph.outputs, plan.schedule.outputs, strict=True)
    results = [value for output, value in outputs if value is not None and output.role != "gradient"]
    return backward_entries(plan.schedule, results)


def test_results_of_forward_are_moved_for_backward_within_the_limit(plans):
    ahead, most = 300, 0
    for plan in (replace(plain, ahead=ahead) for plain, _ in plans if plain.mesh.ndim == 1):
        entries, under_way = plan.schedule.entries, 0
        forward = [e.made for e in entries if isinstance(e, Compute) and e.node.phase == "forward"]
        made = {value for values in forward for value in values}
        for entry, backward in zip(entries, in_backward(plan), strict=True):
            if backward and is_begun(entry) and entry.source in made:
                under_way += entry.change.collectives[0].size
            elif backward and isinstance(entry, Wait) and entry.source in made:
                under_way -= entry.move.change.collectives[0].size
            elif isinstance(entry, Compute):
                most = max(most, under_way)
    assert 0 < most <= ahead


def test_nothing_is_under_way_from_forward_to_backward(plans):
    for _, overlapped in plans:
        schedule = overlapped.schedule
        backward = in_backward(overlapped)
        where = {e.target: back for e, back in zip(schedule.entries, backward, strict=True) if is_begun(e)}
        for entry, back in zip(schedule.entries, backward, strict=True):
            if isinstance(entry, Wait):
                assert where[entry.move.target] == back


def is_begun(entry):
    return isinstance(entry, Move) and entry.begun


def test_calls_and_traffic_stay_the_same(plans):
    def sent(plan):
        steps = (step for move in plan.schedule.moves for step in move.change.collectives)
        return Counter((step.kind, step.axes, step.size) for step in steps)

    for plain, overlapped in plans:
        assert calls(plain, views=False) == calls(overlapped, views=False)
        assert sorted(calls(plain, views=True)) == sorted(calls(overlapped, views=True))
        assert sent(plain) == sent(overlapped)
        assert overlapped.schedule.outputs == plain.schedule.outputs


def test_a_plan_that_fits_still_fits_with_collectives_under_way(plans):
    more = 0
    for plain, overlapped in plans:
        least, most = plain.cost.peak, overlapped.cost.peak
        for limit in (least, (least + max(least, most)) // 2):
            limited = replace(overlapped, memory=limit)
            more += any(isinstance(entry, Wait) for entry in limited.schedule.entries)
            assert limited.cost.peak <= limit
    assert more > 20


def test_a_plan_that_may_begin_nothing_early_waits_for_nothing(plans):
    for plain, _ in plans:
        none = replace(plain, ahead=0)
        assert not any(isinstance(entry, Wait) for entry in none.schedule.entries)
        assert none.cost.seconds == pytest.approx(plain.cost.seconds)


@pytest.mark.parametrize("mesh", MESHES)
def test_results_are_those_of_the_model(graph, mesh):
    for seed in range(2):
        made = replace(random_plan(graph, mesh=mesh, seed=seed), ahead=10**9)
        report = sw.verify(MODEL, ARGS, plan=made, only_plan=True)
        assert report.ok, report


def test_a_plan_keeps_how_much_may_be_under_way(fsdp):
    made = replace(fsdp, ahead=2000, bound=None)
    again = Plan.from_json(made.to_json())
    assert again.ahead == 2000
    assert str(again.schedule) == str(made.schedule)
    document = made.to_json()
    document["options"]["ahead"] = -1
    with pytest.raises(sw.UsageError, match=r"options\.ahead"):
        Plan.from_json(document)


@pytest.mark.parametrize(("mesh", "cluster", "tokens"), [("a=8", "h100", 2**14), ("a=2,b=8", "l40s", 64)])
def test_no_schedule_takes_less_than_the_bound(mesh, cluster, tokens):
    with torch.device("meta"):
        graph = capture(Stack(layers=4, width=1024), (torch.empty(tokens, 1024),))
    made = plan_graph(graph, mesh=mesh, cluster=cluster, overlap=True, confirm=False, compare=False, gap=0.0)
    plain = plan_graph(graph, mesh=mesh, cluster=cluster, confirm=False, compare=False)
    rivals = [plain, made, *(random_plan(graph, mesh=mesh, cluster=cluster, seed=seed) for seed in range(10))]
    fastest = min(replace(rival, ahead=ahead).cost.seconds for rival in rivals for ahead in (0, 10**6, 10**9))
    assert made.bound is not None
    assert made.bound <= fastest * (1 + 1e-9)
