"""Rates of links at calls: whatever they are, no schedule of a plan takes less than what its parts count."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, permutations, product

import numpy as np
import pytest
import torch
from torch import nn

from shardwise.graph import capture
from shardwise.mesh import Cluster, Mesh
from shardwise.planning import Compute, Move, Plan, Wait, plan_graph, random_plan
from shardwise.planning._beside import Beside
from shardwise.planning._chains import Chains
from shardwise.planning._overlap import with_overlap
from shardwise.planning._rates import Rates, _windows, least
from shardwise.planning._schedule import Entry, Schedule
from shardwise.planning._slack import Slack
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


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
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
    small ones in buckets. Then some of those in which all are begun anywhere."""
    moves = [slack for slack in beside.slack if len(slack.stages) == 1 and not slack.follows]
    some = (
        entries_of(beside, zip(order, ([2 * begin] for begin in begins), strict=True))
        for order in permutations(moves)
        for begins in product(*(range(slack.release, slack.need + 1) for slack in order))
    )
    yield from islice(some, MOST)
    r = np.random.default_rng(0)
    for _ in range(MOST // 5):
        begun = [
            (s, r.integers(2 * s.release + s.follows, 2 * s.need, len(s.stages), endpoint=True))
            for s in beside.slack
        ]
        yield entries_of(beside, ((begun[n][0], sorted(begun[n][1])) for n in r.permutation(len(begun))))


def entries_of(beside: Beside, begun: Iterable[tuple[Slack, Sequence[int]]]) -> list[Entry]:
    """A schedule in which stages of moves are begun at some moments: twice the place, and one more after what is needed
    there has been waited for."""
    moves = [(slack, list(begins)) for slack, begins in begun]
    standing = {place for slack, _ in moves for place in slack.places}
    entries: list[Entry] = []

    def wait(stage: Sequence[Move]) -> None:
        entries.extend(Wait(replace(move, begun=True)) for move in stage)

    for moment in range(2 * beside.end + 2):
        for slack, begins in moves:
            for number, (stage, begin) in enumerate(zip(slack.stages, begins, strict=True)):
                if begin == moment:
                    wait(slack.stages[number - 1] if number else ())
                    entries += [replace(move, begun=True) for move in stage]
        place, after = divmod(moment, 2)
        if not after:
            for slack in [slack for slack, _ in moves if slack.need == place]:
                wait(slack.stages[-1])
        elif place < beside.end and place not in standing:
            entries.append(beside.plain.entries[place])
    return entries


def fastest(plan: Plan) -> tuple[float, int, int]:
    """The seconds of the fastest of all schedules (of some of them, if there are too many) and of what is searched for,
    how many there were, and how many moves are in buckets."""
    beside = Beside.of(plan, plan.schedule)
    assert beside is not None
    pairs = zip(plan.schedule.entries, plan.cost.entries, strict=True)
    alone = {entry.node.name: seconds for entry, seconds in pairs if isinstance(entry, Compute)}
    tried = list(schedules(beside))
    best = with_overlap(plan).timeline.seconds
    for entries in tried:
        seconds = [alone[e.node.name] if isinstance(e, Compute) else 0.0 for e in entries]
        made = Schedule(tuple(entries), beside.plain.outputs, beside.layouts)
        best = min(best, timeline(made, seconds, plan.mesh, plan.cluster).seconds)
    return best, len(tried), sum(len(slack.places) for slack in beside.slack if len(slack.places) > 1)


def counted(plan: Plan, weights: Weights) -> float:
    """What a plan counts at least with some rates, without the optimizer's update."""
    windows = dict(_windows(weights.chains, plan.schedule))
    total = 0.0
    for entry, seconds in zip(plan.schedule.entries, plan.cost.entries, strict=True):
        if isinstance(entry, Compute):
            total += seconds * weights.of_call(entry.node)
        elif isinstance(entry, Move):
            window, bucketed, chains = windows[entry.target]
            rates = weights._of(window, chains)
            total += sum(
                (least(plan, entry, step) if bucketed else step.seconds)
                * rates[sum(1 << axis for axis in step.axes)]
                for step in entry.change.collectives
            )
    return total


def drawn(chains: Chains, names: tuple[str, ...], seed: int) -> Weights:
    """Rates at random: low or high, the same everywhere or of each place its own, and in part those of chains."""
    r = np.random.default_rng(seed)
    count, windows = len(set(names)), chains.windows
    most, share = r.choice([BESIDE, 0.5, 1.0]), r.choice([0.0, r.random(), 1.0])
    parts = [r.dirichlet(np.ones(count), n).T * r.random(n) * most for n in (windows.end, windows.end + 1)]
    along, there = {}, np.zeros(windows.end + 1)
    for kind in set(r.choice(len(chains.of_kind), r.integers(1, 4)).tolist()):
        same = r.random() < 0.5
        along[kind] = [
            np.ones(n) if same else r.random(n)
            for n in (int(kinds.max()) + 1 for kinds in (windows.kind, windows.gap))
        ]
        for window in chains.of_kind[kind]:
            there[window.gaps] += 1
    scale = share * most * PARTS / there.max()
    along = {
        kind: (np.floor(calls * scale).astype(np.int64), np.floor(between * scale).astype(np.int64))
        for kind, (calls, between) in along.items()
    }
    return Weights(
        chains, names, *(np.floor(part * (1 - share) * PARTS).astype(np.int64) for part in parts), along
    )


@pytest.mark.parametrize(("model", "mesh"), [("graph", "d=8"), ("graph", "a=2,b=4"), ("biased", "d=8")])
def test_no_schedule_of_a_plan_takes_less_than_it_counts(model, mesh, request):
    graph = request.getfixturevalue(model)
    cluster, many, joined, close = Cluster.of("l40s"), 0, 0, 0.0
    chains, names = Chains(Windows(graph)), links(Mesh.parse(mesh), cluster)
    for seed in range(5):
        plan = random_plan(graph, mesh=mesh, cluster=cluster, seed=seed)
        best, count, in_buckets = fastest(plan)
        many, joined = many + count, joined + in_buckets
        rates = Rates(chains.windows, names)
        rates.add(plan, None)
        tightest, _ = rates.best()
        found = [
            counted(plan, weights) for weights in (tightest, *(drawn(chains, names, s) for s in range(20)))
        ]
        assert max(found) <= best * (1 + 1e-9)
        close = max(close, found[0] / best)
    assert many > 300 and bool(joined) == (model == "biased")
    assert close > 0.9  # the best rates are not far from what can be reached


def test_collectives_that_follow_each_other_on_two_links_count_one_after_another():
    """Residual layers on two links: what is brought to one call by several collectives takes their sum."""
    with torch.device("meta"):
        graph = capture(Residual(), (torch.empty(2**16, 1024),))
    cluster, mesh = Cluster.of("h100"), "a=2,b=8"
    chains, names = Chains(Windows(graph)), links(Mesh.parse(mesh), cluster)
    raised = 0
    for seed in range(8):
        plan = random_plan(graph, mesh=mesh, cluster=cluster, seed=seed)
        rates = Rates(chains.windows, names)
        rates.add(plan, None)
        weights, limit = rates.best()
        best = with_overlap(plan).timeline.seconds
        found = [counted(plan, each) for each in (weights, *(drawn(chains, names, s) for s in range(20)))]
        assert max(found) <= best * (1 + 1e-9)
        rates.plans = [replace(each, tight=frozenset()) for each in rates.plans]
        raised += limit > rates.best()[1] * (1 + 1e-4)
    assert raised


def test_what_can_run_at_once_counts_no_more_than_the_time_that_it_takes(graph):
    """On two links: two redistributions that do not follow each other, and a call beside which they run throughout."""
    chains = Chains(Windows(graph))
    windows, alone, beside = chains.windows, 0, 0
    moves = [
        (ref, user) for ref, users in graph.users.items() for user in users if user.inputs.count(ref) == 1
    ]
    for seed in range(20):
        weights = drawn(chains, ("a", "b"), seed)
        for one, other in permutations(moves, 2):
            first, second = (windows.of_uses(ref, [user]) for ref, user in (one, other))
            if not (second.beside and first.last >= second.first and second.last >= first.first):
                continue
            together = (
                weights.of_uses(one[0], [one[1]]).along[1] + weights.of_uses(other[0], [other[1]]).along[2]
            )
            assert together <= 1
            alone += not first.beside
            both = range(max(first.first, second.first), min(first.last, second.last) if first.beside else 0)
            for call in [windows.calls[place] for place in both]:
                assert weights.of_call(call) * (1 - BESIDE) + together <= 1 + 1e-9
                beside += 1
    assert alone and beside


def test_what_a_call_takes_twice_may_come_in_two_layouts_at_once():
    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(256, 256)

        def forward(self, x):
            h = self.layer(x)
            return (torch.relu(self.layer(h)) + (h @ h.T) @ h).mean()

    with torch.device("meta"):
        graph = capture(Squares(), (torch.empty(256, 256),))
    chains = Chains(Windows(graph))
    twice = [(r, user) for r, users in graph.users.items() for user in users if user.inputs.count(r) == 2]
    assert chains.all
    assert not any(chains.of(ref, [user]) for ref, user in twice)


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
    weights = Weights.even(Chains(windows), ("a", "b"), BESIDE)
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
