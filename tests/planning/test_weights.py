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
from shardwise.planning._overlap import _Overlap
from shardwise.planning._rates import Rates, _windows
from shardwise.planning._schedule import Entry, Schedule
from shardwise.planning._timeline import links, timeline
from shardwise.planning._weights import BESIDE, PARTS, Weights
from shardwise.planning._windows import Windows

MOST = 500  # schedules of one plan


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256, bias=False) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.mean()


@pytest.fixture(scope="module")
def graph():
    with torch.device("meta"):
        return capture(Layers(), (torch.empty(4096, 256),))


def schedules(overlap: _Overlap) -> Iterator[list[Entry]]:
    """Every order in which moves of one collective can be begun where they may, each waited for where it is needed."""
    moves = [slack for slack in overlap.slack if len(slack.stages) == 1]
    standing = {slack.at for slack in moves}
    for order in permutations(moves):
        for begins in product(*(range(slack.release, slack.need + 1) for slack in order)):
            entries: list[Entry] = []
            for place in range(overlap.end + 1):
                for slack, begin in zip(order, begins, strict=True):
                    if begin == place:
                        entries.append(replace(slack.move, begun=True))
                entries += [Wait(replace(s.move, begun=True)) for s in order if s.need == place]
                if place < overlap.end and place not in standing:
                    entries.append(overlap.plain.entries[place])
            yield entries


def fastest(plan: Plan) -> tuple[float, int]:
    """The seconds of the fastest of all schedules (of some of them, if there are too many), and how many there were."""
    overlap = _Overlap(plan, plan.schedule)
    pairs = zip(plan.schedule.entries, plan.cost.entries, strict=True)
    alone = {entry.node.name: seconds for entry, seconds in pairs if isinstance(entry, Compute)}
    best, count = np.inf, 0
    for count, entries in enumerate(schedules(overlap), 1):
        seconds = [alone[e.node.name] if isinstance(e, Compute) else 0.0 for e in entries]
        made = Schedule(tuple(entries), overlap.plain.outputs, overlap.layouts)
        best = min(best, timeline(made, seconds, plan.mesh, plan.cluster).seconds)
        if count == MOST:
            break
    return best, count


def counted(plan: Plan, weights: Weights) -> float:
    """What a plan counts with some rates, without the optimizer's update."""
    windows = dict(_windows(weights.windows, plan.schedule))
    total = 0.0
    for entry, seconds in zip(plan.schedule.entries, plan.cost.entries, strict=True):
        if isinstance(entry, Compute):
            total += seconds * weights.of_call(entry.node)
        elif isinstance(entry, Move):
            rates = weights._of(windows[entry.target])
            total += sum(
                step.seconds * max(rates[axis] for axis in step.axes) for step in entry.change.collectives
            )
    return total


def drawn(windows: Windows, names: tuple[str, ...], seed: int) -> Weights:
    """Rates at random: low or high, the same everywhere or of each place its own."""
    r = np.random.default_rng(seed)
    count = len(set(names))
    most = r.choice([BESIDE, 0.5, 1.0])
    parts = [r.dirichlet(np.ones(count), n).T * r.random(n) * most for n in (windows.end, windows.end + 1)]
    return Weights(windows, names, *(np.floor(part * PARTS).astype(np.int64) for part in parts))


@pytest.mark.parametrize("mesh", ["d=8", "a=2,b=4"])
def test_no_schedule_of_a_plan_takes_less_than_it_counts(graph, mesh):
    cluster, many, close = Cluster.of("l40s"), 0, 0.0
    windows, names = Windows(graph), links(Mesh.parse(mesh), cluster)
    for seed in range(5):
        plan = random_plan(graph, mesh=mesh, cluster=cluster, seed=seed)
        best, count = fastest(plan)
        many += count
        rates = Rates(windows, names)
        rates.add(plan, None)
        tightest, _ = rates.best()
        found = [
            counted(plan, weights) for weights in (tightest, *(drawn(windows, names, s) for s in range(20)))
        ]
        assert max(found) <= best * (1 + 1e-9)
        close = max(close, found[0] / best)
    assert many > 300
    assert close > 0.9  # the best rates are not far from what can be reached


def test_equal_rates_count_calls_fully_and_half_of_what_is_beside_both_links(graph):
    windows = Windows(graph)
    weights = Weights.even(windows, ("a", "b"), BESIDE)
    assert all(weights.of_call(node) == 1.0 for node in graph.nodes)
    gradient = next(output for output in graph.outputs if output.role == "gradient")
    assert windows.of_output(gradient).beside is False  # the last gradient that is made
    assert weights.of_output(gradient) == pytest.approx((1 - BESIDE / 2,) * 2, abs=2 / PARTS)
    last = graph.outputs[-1]
    assert windows.of_output(last).beside
    assert weights.of_output(last) == pytest.approx((BESIDE / 2,) * 2, abs=2 / PARTS)


def test_plans_that_compute_again_are_bounded_too():
    with torch.device("meta"):
        graph = capture(Layers(), (torch.empty(4096, 256),), recompute="auto")
    options = {"mesh": "d=8", "cluster": "l40s", "confirm": False, "compare": False}
    made = plan_graph(graph, overlap=True, gap=0.0, **options)
    plain = plan_graph(graph, **options).overlapped()
    assert made.bound is not None
    assert made.bound <= min(made.cost.seconds, plain.cost.seconds) * (1 + 1e-9)
