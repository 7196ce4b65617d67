import torch

from shardwise.auditing import designed_calls
from shardwise.calls import Call

aten = torch.ops.aten


def texts(*calls, most=12):
    return [str(call) for call in designed_calls(calls, most)]


def test_lists_of_dims_are_emptied():
    assert "aten.sum.dim_IntList(float32[4, 3], [])" in texts(
        Call.of(aten.sum.dim_IntList, torch.rand(4, 3), [1])
    )


def test_numbers_that_select_are_those_that_occur():
    labels = torch.tensor([2, 1, 0, 1])
    known = Call.of(aten.nll_loss_forward.default, torch.rand(4, 3), labels, None, 1, -100)
    assert "aten.nll_loss_forward.default(float32[4, 3], int64[4], None, 1, 2)" in texts(known)


def test_there_are_no_more_than_asked_for_and_none_is_known():
    known = Call.of(aten.softmax.int, torch.rand(4, 3), 1)
    found = texts(known, most=5)
    assert 0 < len(found) <= 5 and str(known) not in found
    assert texts(known, most=0) == []


def test_every_call_runs():
    for call in designed_calls([Call.of(aten.mm.default, torch.rand(4, 3), torch.rand(3, 2))], 12):
        call.run()


def test_a_tensor_that_is_written_is_no_argument_to_change():
    out = Call.of(aten.addmm.out, *(torch.rand(3, 3) for _ in range(3)), out=torch.rand(3, 3))
    for call in designed_calls([out], 6):
        call.run()
