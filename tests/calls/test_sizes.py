"""The same call at other sizes."""

import pytest
import torch
from torch import Tensor

from shardwise.calls import Call, Resizer, resized, small_calls
from shardwise.errors import UsageError
from shardwise.graph import TensorInfo, capture

aten = torch.ops.aten


@torch.library.custom_op("shardwise_calls::powered", mutates_args=())
def powered(x: Tensor, p: int) -> Tensor:
    return x**p


powered.register_fake(lambda x, p: torch.empty_like(x))


@torch.library.custom_op("shardwise_calls::first", mutates_args=())
def first(x: Tensor, count: int) -> Tensor:
    return x[:, :count].clone()


first.register_fake(lambda x, count: x.new_empty(x.shape[0], count))


def runs(call: Call) -> bool:
    try:
        return bool(call.run([torch.rand(shape) for shape in call.shapes]))
    except RuntimeError:
        return False


def test_dims_of_one_size_change_together_and_numbers_where_wanted():
    call = Call.of(aten.addmm.default, torch.rand(8), torch.rand(4, 6), torch.rand(6, 8))
    assert resized(call, {6: 10, 8: 12}).shapes == ((12,), (4, 10), (10, 12))
    view = Call.of(aten.view.default, torch.rand(4, 6), [6, 4])
    assert resized(view, {6: 10})["size"] == [6, 4]
    assert resized(view, {6: 10}, {6: 10}, ["size"])["size"] == [10, 4]
    assert resized(view, {6: 10}, {6: 10}, ["self"])["size"] == [6, 4]


def test_arguments_that_name_sizes_follow_the_dims_they_name():
    resizer = Resizer(Call.of(aten.view.default, torch.rand(4, 6, 8), [24, 8]), runs)
    (even,) = resizer.sizings(2, "even")
    assert (even.shapes, even["size"]) == (((4, 6, 8),), [24, 8])
    (uneven,) = resizer.sizings(2, "uneven")
    assert (uneven.shapes, uneven["size"]) == (((5, 7, 9),), [35, 9])


def test_a_size_that_the_operator_does_not_take_stays():
    resizer = Resizer(Call.of(aten.linalg_cross.default, torch.rand(3, 8), torch.rand(3, 8), dim=0), runs)
    sizings = [call for case in ("even", "uneven") for call in resizer.sizings(2, case)]
    assert {call.shapes[0][0] for call in sizings} == {3}
    assert {call.shapes[0][1] % 2 for call in sizings} == {0, 1}


def small(function, *args):
    """The first small call like that of a function."""
    graph = capture(function, args, training=False)
    return next(small_calls(graph.call(graph.nodes[-1])))


def test_a_number_that_happens_to_be_a_size_stays_as_it_is():
    call = small(lambda x: torch.softmax(x, 2), torch.rand(2, 128, 256))
    assert (call.shapes, call["dim"]) == (((4, 6, 8),), 2)
    assert small(lambda x: powered(x, 2), torch.rand(2, 128))["p"] == 2


def test_a_number_that_must_follow_the_sizes_does():
    call = small(lambda x: first(x, 32), torch.rand(16, 256))
    assert (call.shapes, call["count"]) == (((4, 8),), 6)


def test_small_calls_are_on_real_tensors_of_the_same_dtypes_and_keep_what_differs_apart():
    infos = TensorInfo((4096, 512), torch.bfloat16), TensorInfo((512, 4096), torch.bfloat16)
    for call in small_calls(Call(aten.mm.default, infos, {}, ((4096, 4096),))):
        (m, k), (k2, n) = call.shapes
        assert m == n != k == k2 and m <= 64
        assert all(t.device.type == "cpu" and t.dtype == torch.bfloat16 for t in call.tensors)
        assert call.outputs == ((m, n),)


def test_a_call_whose_outputs_are_not_as_they_should_be_has_no_small_one():
    wrong = Call(aten.neg.default, (TensorInfo((4096, 512), torch.float32),), {}, ((4096, 4096),))
    assert list(small_calls(wrong)) == []
    with pytest.raises(UsageError, match="does not run"):
        list(small_calls(Call(aten.mm.default, (TensorInfo((4, 6), torch.float32),) * 2)))
