"""The simulated time of pipelines obeys laws that hold for any stages."""

from dataclasses import fields, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise import UsageError
from shardwise.dtensor import SCHEDULES, Action, pipeline_actions, stage_ranks
from shardwise.planning import StageTime, simulated

PER_RANK = {"1F1B": 1, "GPipe": 1}
NUMBERS = st.integers(0, 8).map(float)


@st.composite
def pipelines(draw, schedules=SCHEDULES):
    """The actions of a schedule, the ranks of stages and their times."""
    schedule, ranks = draw(st.sampled_from(schedules)), draw(st.integers(1, 4))
    stages, micro_batches = ranks * PER_RANK.get(schedule, 2), draw(st.sampled_from([1, 2, 3])) * 2 * ranks
    case = schedule, ranks, stages
    times = draw(
        st.lists(st.builds(StageTime, *[NUMBERS] * len(fields(StageTime))), min_size=stages, max_size=stages)
    )
    return pipeline_actions(*case, micro_batches), stage_ranks(*case), times


@pytest.mark.parametrize("schedule", ["1F1B", "GPipe"])
@settings(deadline=None)
@given(ranks=st.integers(1, 6), more=st.integers(0, 6), forward=NUMBERS, back=NUMBERS, weight=NUMBERS)
def test_equal_stages_without_sends_take_as_long_as_is_known(schedule, ranks, more, forward, back, weight):
    actions = pipeline_actions(schedule, ranks, ranks, ranks + more)
    found = simulated(
        actions, stage_ranks(schedule, ranks, ranks), [StageTime(forward, back, weight)] * ranks
    )
    assert found.seconds == (ranks + more + ranks - 1) * (forward + back + weight)
    if found.seconds:
        assert found.bubble == pytest.approx((ranks - 1) / (ranks + more + ranks - 1))


@settings(deadline=None)
@given(pipelines())
def test_no_rank_does_two_things_at_once_and_everything_comes_after_what_it_needs(made):
    actions, owners, times = made
    found = simulated(*made)
    ends = {span.action: span.end for spans in found.spans for span in spans}
    sent = {(send.source, send.target, send.micro_batch): send for send in found.sends}
    for listed, spans in zip(actions, found.spans, strict=True):
        assert [span.action for span in spans] == list(listed)
        assert all(first.end <= second.begin for first, second in pairwise(spans))
    for spans in found.spans:
        for begin, _, action in spans:
            near = action.stage + (-1 if action.kind == "forward" else 1)
            if action.kind == "weight" or not 0 <= near < len(times):
                continue
            send = sent.get((near, action.stage, action.micro_batch))
            assert (send is None) is (owners[near] == owners[action.stage])
            before = ends[made_by(ends, near, action)]
            assert before <= begin if send is None else before <= send.begin and send.end <= begin
    for link in {(owners[send.source], owners[send.target]) for send in found.sends}:
        used = [send for send in found.sends if (owners[send.source], owners[send.target]) == link]
        assert all(first.end <= second.begin for first, second in pairwise(used))


def made_by(ends, stage, action):
    kinds = ("forward",) if action.kind == "forward" else ("backward", "input")
    return next(a for a in (Action(stage, kind, action.micro_batch) for kind in kinds) if a in ends)


@settings(deadline=None)
@given(pipelines(), st.data())
def test_nothing_gets_faster_where_something_takes_longer(made, data):
    actions, owners, times = made
    stage = data.draw(st.integers(0, len(times) - 1))
    name = data.draw(st.sampled_from([field.name for field in fields(StageTime)]))
    slower = list(times)
    slower[stage] = replace(times[stage], **{name: getattr(times[stage], name) + data.draw(NUMBERS)})
    assert simulated(actions, owners, slower).seconds >= simulated(actions, owners, times).seconds


@settings(deadline=None)
@given(pipelines())
def test_busy_ranks_and_micro_batches_in_flight(made):
    actions, _, times = made
    found = simulated(*made)
    assert max(found.busy) <= found.seconds + 1e-9
    assert 0 <= found.bubble <= 1
    micro_batches = sum(action.kind == "forward" for listed in actions for action in listed) // len(times)
    assert all(1 <= count <= micro_batches for count in found.in_flight)


def test_1f1b_keeps_as_many_micro_batches_as_stages_follow():
    actions = pipeline_actions("1F1B", 4, 4, 8)
    assert simulated(actions, range(4), [StageTime(1, 1, 1)] * 4).in_flight == (4, 3, 2, 1)
    assert simulated(pipeline_actions("GPipe", 2, 2, 8), range(2), [StageTime(1, 1, 1)] * 2).in_flight == (
        8,
        8,
    )


def test_sends_of_one_rank_to_another_wait_for_each_other():
    order = [[Action(0, "forward", n) for n in range(3)], [Action(1, "forward", n) for n in range(3)]]
    found = simulated(order, (0, 1), [StageTime(1, 0, 0, sends=5), StageTime(1, 0, 0)])
    assert [(send.begin, send.end) for send in found.sends] == [(1, 6), (6, 11), (11, 16)]
    assert found.seconds == 17


def test_a_step_follows_the_last_action_of_a_rank():
    order = [[Action(0, "forward", 0), Action(0, "backward", 0)]]
    assert simulated(order, (0,), [StageTime(1, 2, 3, step=4)]).seconds == 10


def test_actions_that_wait_for_each_other_are_refused():
    order = [
        [Action(0, "backward", 0), Action(0, "forward", 0)],
        [Action(1, "forward", 0), Action(1, "backward", 0)],
    ]
    with pytest.raises(UsageError, match="a pipeline cannot run: rank 0 never gets what"):
        simulated(order, (0, 1), [StageTime(1, 1, 1)] * 2)
