"""The best cut of a chain into stages, compared with all cuts."""

from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest

from shardwise import UsageError
from shardwise.dtensor import SCHEDULES, pipeline_actions, stage_ranks
from shardwise.planning import StageTime, best_cuts, in_flight, simulated


class Chain:
    """A random chain: parts with times, what crosses their boundaries, what they keep, and a limit on memory."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.schedule = SCHEDULES[seed % len(SCHEDULES)]
        each = {"1F1B": 1, "GPipe": 1, "ZBVZeroBubble": 2, "DualPipeV": 2}.get(
            self.schedule
        ) or draw.integers(1, 3)
        self.ranks = int(draw.integers(2, 4 if each == 1 else 3))
        self.stages = int(self.ranks * each)
        self.parts = int(draw.integers(self.stages, self.stages + 7))
        self.micro_batches = 2 * self.ranks * int(draw.integers(1, 4))
        self.work = draw.uniform(0.2, 3, (3, self.parts))
        self.crossing = draw.uniform(0, 1.5, (2, self.parts + 1)) * draw.integers(0, 2)
        self.step = draw.uniform(0, 2, self.parts)
        self.kept, self.held = draw.uniform(1, 4, self.parts), draw.uniform(0.2, 2, self.parts)
        self.case = self.schedule, self.ranks, self.stages
        self.actions = pipeline_actions(*self.case, self.micro_batches)
        self.flying = in_flight(self.actions, self.stages)
        self.limit = np.inf
        peaks = [max(map(self.memory, range(self.stages), cuts, cuts[1:])) for cuts in self.all()]
        self.limit = float(np.quantile(peaks, draw.choice([0.05, 0.3, 0.6])))  # excludes most cuts, or some
        if seed % 10 == 9:
            self.limit = 0.9 * min(peaks)
        self.calls: Counter = Counter()

    def all(self):
        for inner in combinations(range(1, self.parts), self.stages - 1):
            yield (0, *inner, self.parts)

    def memory(self, stage: int, begin: int, end: int) -> float:
        return float(self.kept[begin:end].sum() + self.flying[stage] * self.held[begin:end].sum())

    def time(self, begin: int, end: int) -> StageTime:
        work = self.work[:, begin:end].sum(axis=1)
        return StageTime(*map(float, (*work, *self.crossing[:, end], self.step[begin:end].sum())))

    def cost(self, stage: int, begin: int, end: int) -> StageTime | None:
        self.calls[stage, begin, end] += 1
        return self.time(begin, end) if self.memory(stage, begin, end) <= self.limit else None

    def judge(self, cuts: tuple[int, ...]) -> float:
        self.calls[cuts] += 1
        times = list(map(self.time, cuts, cuts[1:]))
        return simulated(self.actions, stage_ranks(*self.case), times).seconds

    def fits(self, cuts: tuple[int, ...]) -> bool:
        return all(memory <= self.limit for memory in map(self.memory, range(self.stages), cuts, cuts[1:]))

    def best(self, known: bool = True, **options):
        given = {"actions": self.actions} if known else {}
        return best_cuts(
            self.parts,
            self.stages,
            self.cost,
            self.judge,
            self.micro_batches,
            ranks_of_stages=stage_ranks(*self.case),
            **given,
            **options,
        )


@pytest.mark.parametrize("seed", range(100))
def test_no_cut_is_better(seed):
    chain = Chain(seed)
    found = chain.best()
    times = {cuts: chain.judge(cuts) for cuts in chain.all() if chain.fits(cuts)}
    if not times:
        assert found is None
        return
    assert found is not None
    assert chain.fits(found.cuts)
    assert found.seconds == times[found.cuts]
    assert found.seconds == pytest.approx(min(times.values()), rel=1e-9)
    assert found.bound == pytest.approx(found.seconds, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_bounds_that_hold_for_every_schedule_lead_to_the_same(seed):
    chain = Chain(seed)
    known, unknown = chain.best(), chain.best(known=False)
    if known is None:
        assert unknown is None
    else:
        assert unknown.seconds == pytest.approx(known.seconds, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_with_a_gap_fewer_are_judged_and_the_bound_holds(seed):
    chain = Chain(seed)
    exact, near = chain.best(), chain.best(gap=0.2)
    one = chain.best(most=1)
    if exact is None:
        assert near is None and one is None
        return
    assert near.judged <= exact.judged
    for found in (near, one):
        assert found.bound <= exact.seconds * (1 + 1e-9) and exact.seconds <= found.seconds
    assert near.bound >= near.seconds * 0.8 * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_priced_or_judged_twice(seed):
    chain = Chain(seed)
    chain.best()
    assert set(chain.calls.values()) == {1}


def test_long_chains_of_equal_layers_are_cut_well_without_judging_many():
    """128 layers with an embedding and a head on 8 ranks, one and two stages each."""
    weights = np.array([0.3, *[1.0] * 128, 3.0])
    for schedule, stages in (("1F1B", 8), ("Interleaved1F1B", 16)):
        actions, owners = pipeline_actions(schedule, 8, stages, 16), stage_ranks(schedule, 8, stages)

        def cost(stage, begin, end):
            work = float(weights[begin:end].sum())
            return StageTime(work, work, work, sends=0.2, returns=0.2)

        def judge(cuts, actions=actions, owners=owners, cost=cost):
            return simulated(actions, owners, [cost(0, *pair) for pair in pairwise(cuts)]).seconds

        found = best_cuts(
            130, stages, cost, judge, 16, 0.02, actions=actions, ranks_of_stages=owners, most=300
        )
        even = 3 * weights.sum() / 8 * (16 + 7 * 8 / stages)  # as if layers could be cut anywhere
        assert found.seconds <= 1.05 * even


def test_a_chain_has_at_least_as_many_parts_as_stages():
    with pytest.raises(UsageError, match="a chain of 2 parts cannot be cut into 3 stages: give 1 to 2"):
        best_cuts(2, 3, lambda *_: None, lambda _: 0.0, 4)
