"""Collectives are begun where the step is shortest: shifts of what a first schedule begins."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from shardwise.graph import capture
from shardwise.mesh import Cluster
from shardwise.planning import Copy, Plan, random_plan
from shardwise.planning._beside import Beside
from shardwise.planning._evaluate import Evaluation
from shardwise.planning._overlap import _run, overlapped
from shardwise.planning._schedule import Compute, Move, Wait, with_early_views
from shardwise.planning._timeline import links, timeline

AHEAD = 2**40


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ups = nn.ModuleList(nn.Linear(256, 512) for _ in range(4))
        self.downs = nn.ModuleList(nn.Linear(512, 256) for _ in range(4))

    def forward(self, x):
        for up, down in zip(self.ups, self.downs, strict=True):
            x = x + down(torch.relu(up(x)))
        return x.mean()


class Gated(nn.Module):
    """What each layer is given is used by two products, and viewed before."""

    def __init__(self) -> None:
        super().__init__()
        self.ups, self.gates = (
            nn.ModuleList(nn.Linear(256, 512, bias=False) for _ in range(3)) for _ in range(2)
        )
        self.downs = nn.ModuleList(nn.Linear(512, 256, bias=False) for _ in range(3))

    def forward(self, x):
        for up, gate, down in zip(self.ups, self.gates, self.downs, strict=True):
            x = x + down(torch.relu(gate(x)) * up(x))
        return x.mean()


def sharing(plan: Plan) -> Plan:
    """The plan with what several calls of a phase use brought into the layout of the first, and moved on from there."""
    copies = []
    for ref, users in plan.graph.users.items():
        for phase in ("forward", "backward"):
            some = [node for node in users if node.phase == phase and node.inputs.count(ref) == 1]
            layouts = [plan.choices[node.name].input_layouts[node.inputs.index(ref)] for node in some]
            if len(some) > 1 and layouts[0] != plan.layout(ref):
                copies.append(Copy(ref, layouts[0], tuple(node.name for node in some)))
    return replace(plan, copies=tuple(copies))


@pytest.fixture(scope="module")
def plans():
    """Random plans on one link, and on two, with collectives along both; the last ones share redistributions."""
    with torch.device("meta"):
        graph = capture(Layers(), (torch.empty(4096, 256),))
    options = {"cluster": Cluster.of("h100")}
    found = [random_plan(graph, mesh="d=4", seed=seed, **options) for seed in range(8)]
    found += [random_plan(graph, mesh="a=2,b=8", seed=seed, **options) for seed in range(8)]
    assert {len(set(links(plan.mesh, plan.cluster))) for plan in found} == {1, 2}
    with torch.device("meta"):
        graph = capture(Gated(), (torch.empty(16, 256, 256),))
    shared = [sharing(random_plan(graph, mesh="a=2,b=8", seed=seed, **options)) for seed in range(6)]
    return found + shared


def seconds_of(plan, schedule):
    alone = {
        e.node.name: s
        for e, s in zip(plan.schedule.entries, plan.cost.entries, strict=True)
        if isinstance(e, Compute)
    }
    taken = [alone[e.node.name] if isinstance(e, Compute) else 0.0 for e in schedule.entries]
    return timeline(schedule, taken, plan.mesh, plan.cluster).seconds


def test_shifts_make_steps_shorter_and_never_longer(plans):
    gains = []
    for plan in plans:
        begun = _run(Beside.of(plan, plan.schedule), AHEAD)
        gains.append(1 - seconds_of(plan, begun.shifted()) / begun.running.now)
    assert min(gains) > -1e-6
    assert sum(gain > 0.005 for gain in gains) >= len(plans) // 2


def test_what_the_search_reckons_with_is_what_the_timeline_says(plans):
    """The search runs only what a shift changes; the timeline all of it."""
    for plan in plans:
        shifts = _run(Beside.of(plan, plan.schedule), AHEAD).shifts()
        entries = list(shifts.entries())
        schedule = replace(plan.schedule, entries=tuple(entries), layouts=shifts.of.layouts)
        assert shifts.seconds == pytest.approx(seconds_of(plan, schedule), rel=1e-6)


def test_everything_is_begun_once_when_it_is_made_and_waited_for_before_it_is_used(plans):
    for plan in plans:
        schedule = overlapped(plan, plan.schedule, AHEAD)
        there = {value for value in plan.schedule.layouts if value.ref.name in plan.inputs and not value.copy}
        under_way = set()
        for entry in schedule.entries:
            if isinstance(entry, Wait):
                under_way.remove(entry.move.target)
                there.add(entry.move.target)
                continue
            assert there.issuperset(entry.used)
            if isinstance(entry, Move) and entry.begun:
                under_way.add(entry.target)
            else:
                there.update(entry.made)
        assert not under_way
        assert there.issuperset(value for value in schedule.outputs if value is not None)


def test_what_calls_share_is_moved_on_for_one_of_them_beside_those_before(plans):
    earlier = 0
    for plan in plans:
        beside = Beside.of(plan, plan.schedule)
        following = [slack for slack in beside.slack if slack.follows and slack.release < slack.at]
        entries = [str(entry) for entry in overlapped(plan, plan.schedule, AHEAD).entries]
        for slack in following:
            (move,) = slack.moves
            ended = next(at for at, text in enumerate(entries) if text == f"wait for {move.source}")
            begun = next(at for at, text in enumerate(entries) if text.startswith(f"begin {move.target}"))
            assert ended < begun
            calls = [at for at, text in enumerate(entries) if "aten.mm" in text]
            earlier += any(begun < at for at in calls if at < _waited(entries, move))
    assert earlier >= 3


def _waited(entries: list[str], move: Move) -> int:
    return next(at for at, text in enumerate(entries) if text == f"wait for {move.target}")


def test_views_from_which_moves_begin_are_made_as_soon_as_they_can_be(plans):
    earlier = 0
    for plan in plans:
        schedule = plan.schedule
        made = with_early_views(schedule, plan.graph.ends)
        assert Counter(map(str, made.entries)) == Counter(map(str, schedule.entries))
        assert Evaluation(plan, made).cost().peak <= plan.cost.peak
        there = {value for value in schedule.layouts if value.ref.name in plan.inputs and not value.copy}
        for entry in made.entries:
            assert there.issuperset(entry.used)
            there.update(entry.made)
        before, after = (
            {entry.node.name: at for at, entry in enumerate(each.entries) if isinstance(entry, Compute)}
            for each in (schedule, made)
        )
        earlier += any(after[name] < before[name] for name in before)
    assert earlier > len(plans) // 4


def test_every_rank_finds_the_same_schedule(plans):
    for plan in plans[::4]:
        texts = {str(overlapped(plan, plan.schedule, AHEAD)) for _ in range(3)}
        assert len(texts) == 1


def test_limits_hold_after_shifts(plans):
    """Bytes of a plan, and of parameters that are gathered early."""
    tight = 0
    for plan in plans:
        limited = replace(plan, memory=plan.cost.peak + 300_000, ahead=200_000)
        assert limited.cost.peak <= limited.memory
        free = replace(plan, ahead=AHEAD)
        tight += free.cost.peak > limited.memory
    assert tight > len(plans) // 4
