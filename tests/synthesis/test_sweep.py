"""Calls that a sweep makes from the known ones."""

import torch

from shardwise.calls import Call
from shardwise.synthesis import sweep


def test_inputs_that_must_be_sorted_are_sorted_in_every_call():
    calls = [call for calls in sweep(torch.searchsorted).calls.values() for call in calls]
    lengths = {call.tensors[0].shape[-1] for call in calls}
    assert len(lengths) > 3
    for call in calls:
        if call.kwargs.get("sorter") is None:
            sequence = call.tensors[0]
            assert torch.equal(sequence, sequence.sort().values), call


def test_values_for_an_argument_take_the_place_of_the_usual_ones():
    calls = sweep(torch.cumsum, [Call.of(torch.cumsum, torch.rand(3, 4, 5), 1)], {"dim": [0, -1]}).calls
    dims = {call.args[1] for call in calls["aten.cumsum.default"]}
    assert dims == {0, 1, -1}  # 1 is the example's own
