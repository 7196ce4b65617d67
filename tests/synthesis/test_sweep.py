"""Calls that a sweep makes from the known ones."""

import torch

from shardwise.calls import Call
from shardwise.synthesis import sweep
from shardwise.synthesis._columns import Domain


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


def test_operands_that_broadcast_are_unusual_where_those_of_all_examples_have_one_shape():
    loss, x = torch.ops.aten.huber_loss_backward.default, torch.rand(3, 4)
    domain = Domain.of([Call.of(loss, g, x, x, 1, 1.0) for g in (torch.rand(()), x)])
    assert domain.is_unusual(Call.of(loss, torch.rand(()), x, x[0], 1, 1.0))
    assert not domain.is_unusual(Call.of(loss, torch.rand(()), x.t(), x.t(), 1, 1.0))
