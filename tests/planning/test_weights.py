"""Rates of links at calls: whatever they are, no schedule of a plan takes less than what its parts count."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
import torch
from torch import nn

from shardwise.graph import capture
from shardwise.mesh import Cluster, Mesh
from shardwise.planning import Compute, Move, Plan, Wait, plan_graph, random_plan
from shardwise.planning._beside import Beside
from shardwise.planning._rates import Rates, _windows, least
from shardwise.planning._schedule import Entry, Schedule
from shardwise.planning._timeline import links, timeline
from shardwise.planning._weights import BESIDE, PARTS, Weights
from shardwise.planning._windows import Windows

MOST = 500  # schedules of one plan


class Layers(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256, bias) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.mean()


@pytest.fixture(scope="module")
def graph():
    with torch.device("meta"):
        return capture(Layers(), (torch.empty(4096, 256),))


@pytest.fixture(scope="module")
def biased():
    """With small gradients, whose reductions are joined."""
    with torch.device("meta"):
        return capture(Layers(bias=True), (torch.empty(2**15, 256),))


def schedules(beside: Beside) -> Iterator[list[Entry]]:
    """Every order in which moves of one collective can be begun where they may, each waited for where it is needed;
    small ones in buckets."""
    moves = [slack for slack in beside.slack if len(slack.stages) == 1]
    standing = {place for slack in moves for place in slack.places}
    for order in permutations(moves):
        for begins in product(*(range(slack.release, slack.need + 1) for slack in order)):
            entries: list[Entry] = []
            for place in range(beside.end + 1):
                for slack, begin in zip(order, begins, strict=True):
                    if begin == place:
                        entries += [replace(move, begun=True) for move in slack.stages[0]]
                ended = (move for slack in order if slack.need == place for move in slack.stages[0])
                entries += [Wait(replace(move, begun=True)) for move in ended]
                if place < beside.end and place not in standing:
                    entries.append(beside.plain.entries[place])
            yield entries


def fastest(plan: Plan) -> tuple[float, int, int]:
    """The seconds of the fastest of all schedules (of some of them, if there are too many), how many there were, and
    how many moves are in buckets."""
    beside = Beside.of(plan, plan.schedule)
    assert beside is not None
    pairs = zip(plan.schedule.entries, plan.cost.entries, strict=True)
    alone = {entry.node.name: seconds for entry, seconds in pairs if isinstance(entry, Compute)}
    best, count = np.inf, 0
    for count, entries in enumerate(schedules(beside), 1):
        seconds = [alone[e.node.name] if isinstance(e, Compute) else 0.0 for e in entries]
        made = Schedule(tuple(entries), beside.plain.outputs, beside.layouts)
        best = min(best, timeline(made, seconds, plan.mesh, plan.cluster).seconds)
        if count == MOST:
            break
    return best, count, sum(len(slack.places) for slack in beside.slack if len(slack.places) > 1)


def counted(plan: Plan, weights: Weights) -> float:
    """What a plan counts at least with some rates, without the optimizer's update."""
    windows = {target: rest for target, *rest in _windows(weights.windows, plan.schedule)}
    total = 0.0
    for entry, seconds in zip(plan.schedule.entries, plan.cost.entries, strict=True):
        if isinstance(entry, Compute):
            total += seconds * weights.of_call(entry.node)
        elif isinstance(entry, Move):
            window, bucketed = windows[entry.target]
            rates = weights._of(window)
            total += sum(
                (least(plan, entry, step) if bucketed else step.seconds)
                * rates[sum(1 << axis for axis in step.axes)]
                for step in entry.change.collectives
            )
    return total


def drawn(windows: Windows, names: tuple[str, ...], seed: int) -> Weights:
    """Rates at random: low or high, the same everywhere or of each place its own."""
    r = np.random.default_rng(seed)
    count = len(set(names))
    most = r.choice([BESIDE, 0.5, 1.0])
    parts = [r.dirichlet(np.ones(count), n).T * r.random(n) * most for n in (windows.end, windows.end + 1)]
    return Weights(windows, names, *(np.floor(part * PARTS).astype(np.int64) for part in parts))


@pytest.mark.parametrize(("model", "mesh"), [("graph", "d=8"), ("graph", "a=2,b=4"), ("biased", "d=8")])
def test_no_schedule_of_a_plan_takes_less_than_it_counts(model, mesh, request):
    graph = request.getfixturevalue(model)
    cluster, many, joined, close = Cluster.of("l40s"), 0, 0, 0.0
    windows, names = Windows(graph), links(Mesh.parse(mesh), cluster)
    for seed in range(5):
        plan = random_plan(graph, mesh=mesh, cluster=cluster, seed=seed)
        best, count, in_buckets = fastest(plan)
        many, joined = many + count, joined + in_buckets
        rates = Rates(windows, names)
        rates.add(plan, None)
        tightest, _ = rates.best()
        found = [
            counted(plan, weights) for weights in (tightest, *(drawn(windows, names, s) for s in range(20)))
        ]
        assert max(found) <= best * (1 + 1e-9)
        close = max(close, found[0] / best)
    assert many > 300 and bool(joined) == (model == "biased")
    assert close > 0.9  # the best rates are not far from what can be reached


def test_rates_are_looked_for_with_which_all_plans_found_count_enough(graph):
    cluster = Cluster.of("h100")
    names = links(Mesh.parse("a=2,b=8"), cluster)
    assert len(set(names)) == 2
    rates, apart = Rates(Windows(graph), names), 0
    plans = [random_plan(graph, mesh="a=2,b=8", cluster=cluster, seed=seed) for seed in range(6)]
    assert any(
        len(step.axes) > 1
        for plan in plans
        for move in plan.schedule.moves
        for step in move.change.collectives
    )
    for plan in plans:
        rates.add(plan, None)
        best, limit = rates.best()
        least = [counted(other, rates.center) + other.cost.update for other in plans[: len(rates.plans)]]
        enough = min(least) + 0.5 * (limit - min(least))
        nearest = rates._nearest(enough)
        found = [counted(other, nearest) + other.cost.update for other in plans[: len(rates.plans)]]
        assert min(found) >= enough * (1 - 1e-5)
        assert min(
            counted(other, best) + other.cost.update for other in plans[: len(rates.plans)]
        ) <= limit * (1 + 1e-5)
        apart += abs(nearest.calls - rates.center.calls).sum() < abs(best.calls - rates.center.calls).sum()
    assert apart


def test_equal_rates_count_calls_fully_and_half_of_what_is_beside_both_links(graph):
    windows = Windows(graph)
    weights = Weights.even(windows, ("a", "b"), BESIDE)
    assert all(weights.of_call(node) == 1.0 for node in graph.nodes)
    gradient = next(output for output in graph.outputs if output.role == "gradient")
    assert windows.of_output(gradient).beside is False  # the last gradient that is made
    assert weights.of_output(gradient).along == pytest.approx(
        (0, 1 - BESIDE / 2, 1 - BESIDE / 2, 1), abs=2 / PARTS
    )
    last = graph.outputs[-1]
    assert windows.of_output(last).beside
    assert weights.of_output(last).along == pytest.approx((0, BESIDE / 2, BESIDE / 2, BESIDE), abs=2 / PARTS)


def test_plans_that_compute_again_are_bounded_too():
    with torch.device("meta"):
        graph = capture(Layers(), (torch.empty(4096, 256),), recompute="auto")
    options = {"mesh": "d=8", "cluster": "l40s", "confirm": False, "compare": False}
    made = plan_graph(graph, overlap=True, gap=0.0, **options)
    plain = plan_graph(graph, **options).overlapped()
    assert made.bound is not None
    assert made.bound <= min(made.cost.seconds, plain.cost.seconds) * (1 + 1e-9)
