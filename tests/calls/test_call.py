"""A call: its arguments by name, its tensors in order, itself with something else in it, and what it gives."""

import pickle
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from shardwise.calls import Call
from shardwise.errors import UsageError
from shardwise.graph import TensorInfo

aten = torch.ops.aten
X, Y = torch.rand(4, 6), torch.rand(6, 8)


@torch.library.custom_op("shardwise_calls::scaled", mutates_args=())
def scaled(x: Tensor, by: Tensor, plus: Tensor | None = None) -> Tensor:
    return x * by + (0 if plus is None else plus)


scaled.register_fake(lambda x, by, plus=None: torch.empty_like(x))


class Pair(NamedTuple):
    first: Tensor
    second: int


# -- arguments


def test_arguments_have_the_names_of_the_schema_and_its_defaults():
    call = Call.of(aten.sum.dim_IntList, X, [1])
    assert call["dim"] == [1] and call["keepdim"] is False and call["dtype"] is None
    assert list(call.given) == ["self", "dim"]
    assert "keepdim" in call and "dims" not in call


def test_arguments_of_a_function_have_the_names_of_its_signature():
    def function(x, scale=2.0, *more, mode="plain", **rest):
        return x

    call = Call.of(function, X, 3.0, Y, Y, extra=1)
    assert list(call.given) == ["x", "scale", "more", "extra"]
    assert call["more"] == (Y, Y) and call["mode"] == "plain" and call["extra"] == 1
    assert call.tensor_names == ("x", "more", "more")


def test_of_a_builtin_without_a_signature_only_positions_are_known():
    assert list(Call.of(torch.mm, X, Y).given) == ["arg0", "arg1"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Call.of(aten.mm.default, X), r"aten\.mm\.default needs an argument 'mat2'"),
        (
            Call.of(aten.mm.default, X, Y, X),
            r"aten\.mm\.default takes 2 positional arguments, but 3 were given",
        ),
    ],
)
def test_what_is_missing_or_too_much_is_named(call, message):
    assert not call.is_complete
    with pytest.raises(UsageError, match=message):
        _ = call.arguments


def test_an_argument_that_the_operator_does_not_have_is_named():
    with pytest.raises(UsageError, match=r"aten\.mm\.default has no argument 'dim': it takes self, mat2"):
        _ = Call.of(aten.mm.default, X, Y)["dim"]


def test_a_call_by_name_hands_arguments_on_as_dispatch_does():
    call = Call.named(aten.clamp.default, {"max": 1.0, "self": X})
    assert str(call) == "aten.clamp.default(float32[4, 6], None, 1.0)"
    call = Call.named(aten.sum.dim_IntList, {"dtype": torch.float64, "self": X, "dim": [1]})
    assert str(call) == "aten.sum.dim_IntList(float32[4, 6], [1], dtype=torch.float64)"


def test_size_arguments_are_distinguished_from_windows():
    assert Call.of(aten.view.default, X, [24]).size_arguments == ()
    assert Call.of(aten.view.default, X, [6, 4]).size_arguments == ("size",)
    assert Call.of(aten.avg_pool2d.default, torch.rand(2, 3, 8, 8), [2, 2]).size_arguments == ()


# -- tensors


def test_tensors_count_in_order_lists_one_by_one():
    call = Call.of(aten.index_put.default, X, [None, torch.tensor([1])], Y)
    assert [t.data_ptr() for t in call.tensors] == [t.data_ptr() for t in (X, call["indices"][1], Y)]
    assert call.tensor_names == ("self", "indices", "values")
    assert call.lists == ((1,),)
    assert Call.of(aten.cat.default, [X, X, X]).lists == ((0, 1, 2),)


def test_keyword_tensors_count_in_the_order_of_the_schema():
    first, second = torch.rand(()), torch.rand(4, 6)
    call = Call.of(scaled, X, plus=second, by=first)
    assert call.tensor_names == ("x", "by", "plus")
    assert call.tensors[1] is first and call.tensors[2] is second


def test_stand_ins_have_shapes_and_dtypes_and_nothing_else():
    info = TensorInfo((4, 6), torch.bfloat16)
    call = Call.of(aten.softmax.int, info, 1)
    assert call.tensors == (info,) and call.shape("self") == (4, 6) and call.has("self")
    assert str(call) == "aten.softmax.int(bfloat16[4, 6], 1)"
    assert call.outputs == ((4, 6),)


def test_numbers_and_arrays_are_no_tensors():
    numpy = pytest.importorskip("numpy")
    assert Call.of(lambda x, y: x, X, numpy.float64(2.0)).tensors == (X,)


def test_tensors_to_write_to_are_no_inputs_and_are_made_anew():
    out = torch.zeros(4, 8)
    call = Call.of(aten.mm.out, X, Y, out=out)
    assert len(call.tensors) == 2 and "out" not in call
    assert torch.equal(call.run()[0], X @ Y) and not out.any()
    assert call.outputs == ((4, 8),)


# -- outputs


def test_outputs_are_found_on_meta_where_they_are_not_given():
    big = torch.empty(1 << 40, 6, device="meta")
    assert Call.of(aten.topk.default, big, 2, 1).outputs == ((1 << 40, 2), (1 << 40, 2))
    assert Call.of(aten.topk.default, big, 2, 1).output == (1 << 40, 2)
    assert Call(aten.neg.default, (X,), {}, [(1, 2)]).outputs == ((1, 2),)


def test_outputs_of_an_operator_without_a_meta_kernel_are_found_on_copies():
    torch.library.define("shardwise_calls::without_meta", "(Tensor(a!) x) -> Tensor")
    torch.library.impl("shardwise_calls::without_meta", "CPU", lambda x: x.zero_()[:2].clone())
    ones = torch.ones(4)
    assert Call.of(torch.ops.shardwise_calls.without_meta.default, ones).outputs == ((2,),)
    assert ones.all()


def test_a_call_that_does_not_run_says_so_in_one_sentence():
    with pytest.raises(
        UsageError, match=r"aten\.mm\.default\(float32\[4, 6\], float32\[4, 6\]\) does not run"
    ):
        _ = Call.of(aten.mm.default, X, X).outputs


# -- the same call with something else in it


@pytest.mark.parametrize(
    "call",
    [
        Call.of(aten.mm.default, X, Y),
        Call.of(aten.cat.default, [X, X], 1),
        Call.of(aten.cat.default, (X, X), 1),
        Call.of(aten.index.Tensor, X, [None, torch.tensor([1, 2])]),
        Call.of(aten.searchsorted.Tensor, X.sort().values, X, sorter=X.sort().indices),
        Call.of(aten.mm.out, X, Y, out=torch.empty(0)),
        Call.of(scaled, X, by=torch.rand(())),
        Call.of(lambda xs, y: xs["a"] + y, {"a": X}, X),
        Call.of(lambda pair, y: pair.first + y, Pair(X, 2), X),
    ],
    ids=lambda call: call.name,
)
def test_other_tensors_go_where_the_own_ones_were(call):
    others = [t.clone() for t in call.tensors]
    changed = call.with_tensors(others)
    assert all(a is b for a, b in zip(changed.tensors, others, strict=True))
    expected = call.run()
    for outputs in (call.run(others), changed.run(), call.copied().run()):
        assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
    assert [tuple(o.shape) for o in call.on_meta().run()] == [tuple(o.shape) for o in expected]


def test_too_few_tensors_are_refused():
    with pytest.raises((ValueError, StopIteration)):
        Call.of(aten.mm.default, X, Y).with_tensors([X])
    with pytest.raises(ValueError, match="was given 3 tensors for 2"):
        Call.of(aten.mm.default, X, Y).with_tensors([X, Y, X])


def test_arguments_are_changed_by_name_wherever_they_stand():
    call = Call.of(aten.sum.dim_IntList, X, [1], dtype=torch.float64)
    changed = call.with_arguments(dim=[0], keepdim=True, dtype=None)
    assert (changed["dim"], changed["keepdim"], changed["dtype"]) == ([0], True, None)
    assert call["dim"] == [1] and call["dtype"] == torch.float64
    assert call(self=Y, dim=[0]).shape == (8,)


# -- running


def test_running_leaves_the_tensors_of_a_call_as_they_are():
    negative = -torch.ones(3)
    call = Call.of(aten.relu_.default, negative)
    assert not call.run()[0].any() and (negative == -1).all()
    assert call.mutated == (0,)


def test_a_kernel_that_would_end_the_process_is_not_run():
    call = Call.of(aten._adaptive_avg_pool2d_backward.default, torch.rand(2, 8, 5, 7), torch.rand(2, 8, 8, 8))
    assert call.run()[0].shape == (2, 8, 8, 8)
    wrong = [torch.rand(1, 4, 5, 7), torch.rand(2, 8, 8, 8)]
    with pytest.raises(ValueError, match="does not take shapes"):
        call.run(wrong)
    with pytest.raises(ValueError, match="does not take shapes"):
        replace(call, guarded=True).with_tensors(wrong)()


# -- telling calls apart


def test_signatures_tell_calls_apart_by_shapes_dtypes_and_kinds_of_numbers():
    def signature(*args):
        return Call.of(aten.add.Tensor, *args).signature

    assert signature(X, 1) == signature(torch.zeros(4, 6), 1)
    different = [
        signature(X, 1),
        signature(X, 1.0),
        signature(X, True),
        signature(Y, 1),
        signature(X.double(), 1),
    ]
    assert len(set(different)) == 5
    assert signature(X, float("nan")) == signature(X, float("nan"))
    strided = (TensorInfo((4, 6), torch.float32), TensorInfo((4, 6), torch.float32, (1, 4)))
    assert signature(strided[0], 1) != signature(strided[1], 1)


def test_a_call_travels_between_processes():
    call = Call.of(aten.clone.default, X, memory_format=torch.contiguous_format)
    assert call.run() and call.signature  # whatever it has worked out stays behind
    found = pickle.loads(pickle.dumps(call))
    assert found.op is call.op and found["memory_format"] is torch.contiguous_format
    assert torch.equal(found.tensors[0], X)
