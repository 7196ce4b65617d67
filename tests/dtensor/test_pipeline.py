"""torch's pipeline schedules as data: complete, in an order that can be run, and refused in one sentence."""

from collections import Counter
from itertools import product

import pytest

from shardwise import UsageError
from shardwise.dtensor import SCHEDULES, Action, pipeline_actions, stage_ranks

STAGES_PER_RANK = {"1F1B": 1, "GPipe": 1, "ZBVZeroBubble": 2, "DualPipeV": 2}
CASES = [
    (schedule, ranks, STAGES_PER_RANK.get(schedule, each) * ranks, micro_batches)
    for schedule, ranks, each, micro_batches in product(SCHEDULES, (1, 2, 4), (1, 3), (8, 12))
    if each == 1 or schedule not in STAGES_PER_RANK
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_micro_batch_goes_through_each_stage_once(case):
    schedule, _, stages, micro_batches = case
    owners = stage_ranks(*case[:3])
    found = Counter(action for actions in pipeline_actions(*case) for action in actions)
    for stage, number in product(range(stages), range(micro_batches)):
        assert found[Action(stage, "forward", number)] == 1
        whole, first, second = (
            found[Action(stage, kind, number)] for kind in ("backward", "input", "weight")
        )
        assert (whole, first, second) in ((1, 0, 0), (0, 1, 1))
        split = {"InterleavedZeroBubble": True, "ZBVZeroBubble": True, "DualPipeV": None}.get(schedule, False)
        assert split is None or bool(first) is split
    for rank, actions in enumerate(pipeline_actions(*case)):
        assert {owners[action.stage] for action in actions} == {rank}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_ranks_never_wait_for_each_other_in_a_circle(case):
    waiting = [list(actions) for actions in pipeline_actions(*case)]
    last, done = case[2] - 1, set()
    while any(waiting):
        before = len(done)
        for actions in waiting:
            while actions and needed(actions[0], last) <= done:
                action = actions.pop(0)
                kinds = ("input", "weight") if action.kind == "backward" else (action.kind,)
                done |= {Action(action.stage, kind, action.micro_batch) for kind in kinds}
        assert len(done) > before, f"nothing can run after {before} actions"


def needed(action, last):
    """What must be done before an action, backward as its two parts."""
    stage, number = action.stage, action.micro_batch
    if action.kind == "forward":
        return {Action(stage - 1, "forward", number)} if stage else set()
    if action.kind == "weight":
        return {Action(stage, "input", number)}
    after = {Action(stage + 1, "input", number)} if stage < last else set()
    return {Action(stage, "forward", number), *after}


def test_looped_bfs_goes_back_from_the_last_micro_batch():
    (actions,) = pipeline_actions("LoopedBFS", 1, 1, 3)
    assert [action.micro_batch for action in actions] == [0, 1, 2, 2, 1, 0]


def test_stages_lie_in_rounds_or_as_a_v():
    assert stage_ranks("1F1B", 3, 3) == (0, 1, 2)
    assert stage_ranks("LoopedBFS", 2, 6) == (0, 1, 0, 1, 0, 1)
    assert stage_ranks("DualPipeV", 3, 6) == (0, 1, 2, 2, 1, 0)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (("2F2B", 2, 2, 4), "unknown schedule '2F2B': use one of 1F1B, GPipe"),
        (("1F1B", 2, 4, 4), "1F1B has one stage per rank: give 2 stages instead of 4"),
        (("ZBVZeroBubble", 2, 2, 4), "ZBVZeroBubble has two stages per rank: give 4 stages instead of 2"),
        (("Interleaved1F1B", 4, 6, 4), "6 stages cannot be divided among 4 ranks: give a multiple of 4"),
        (("GPipe", 0, 0, 4), "a pipeline has 0 ranks"),
        (("GPipe", 2, 2, 0), "a pipeline has 0 micro-batches"),
        (
            ("1F1B", 4, 4, 2),
            r"1F1B of 4 stages on 4 ranks with 2 micro-batches: Number of microbatches \(2\) must",
        ),
        (("Interleaved1F1B", 4, 8, 9), "multiple of the number of rounds"),
        (("DualPipeV", 2, 4, 3), "at least as many microbatches as stages"),
    ],
)
def test_a_mistake_is_one_sentence(case, message):
    with pytest.raises(UsageError, match=message) as caught:
        pipeline_actions(*case)
    assert "\n" not in str(caught.value)
