import torch

from shardwise.auditing import designed_calls, optional_tensors
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


def test_a_mask_that_no_known_call_has_is_given_in_shapes_that_fit():
    query, key = torch.rand(2, 4, 3, 8), torch.rand(2, 4, 5, 8)
    known = [Call.of(aten._scaled_dot_product_flash_attention_for_cpu.default, query, key, key, 0.0, True)]
    given = optional_tensors(known)
    assert {(each.name, each.shape, each.flag) for each in given} == {
        ("attn_mask", shape, flag) for shape in ((2, 4, 3, 5), (3, 5)) for flag in (None, "is_causal")
    }
    masked = [call for call in designed_calls(known, 12, given) if call["attn_mask"] is not None]
    assert {call["is_causal"] for call in masked} == {True, False}


def test_an_optional_tensor_that_some_known_call_has_is_left_to_the_design():
    rows, labels = torch.rand(4, 3), torch.tensor([2, 1, 0, 1])
    known = [
        Call.of(aten.nll_loss_forward.default, rows, labels, weight, 1, -100)
        for weight in (None, torch.rand(3))
    ]
    assert optional_tensors(known) == []
