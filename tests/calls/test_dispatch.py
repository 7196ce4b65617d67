"""What a function becomes at dispatch, and what is recorded there."""

import subprocess
import sys

import pytest
import torch

from shardwise.calls import Call, dispatched, overload_calls, reached, reaches_dispatch
from shardwise.placements import Row

aten = torch.ops.aten
X, Y = torch.rand(4, 6), torch.rand(6, 8)


def names(calls):
    return [call.name for call in calls]


def test_a_function_is_a_front_of_the_one_overload_it_reaches():
    front = dispatched(Call.of(torch.nn.functional.layer_norm, X, [6]))
    assert front.is_front and front.overloads == ("aten.native_layer_norm.default",)
    assert str(front.judged) == "aten.native_layer_norm.default(float32[4, 6], [6], None, None, 1e-05)"
    assert (front.inputs, front.outputs) == ((0,), (0,))  # of its three outputs the function returns one


def test_tensors_of_a_front_count_as_the_users():
    def swapped(x, y):
        return torch.mm(y, x)

    front = dispatched(Call.of(swapped, Y, X))
    assert front.inputs == (1, 0)
    assert str(front.user_row(Row.parse("S(0), R -> S(0)"))) == "R, S(0) -> S(0)"
    placements = Row.parse("S(0), R -> R").inputs
    assert front.judged_inputs(placements) == placements[::-1]


def test_the_judged_call_has_the_examples_own_tensors():
    front = dispatched(Call.of(torch.mm, X, Y))
    assert front.judged.tensors[0] is X and front.judged.tensors[1] is Y


def test_a_function_of_several_overloads_is_judged_whole():
    def several(x, y):
        return torch.mm(x, y).relu()

    call = Call.of(several, X, Y)
    front = dispatched(call)
    assert not front.is_front and front.judged is call
    assert front.overloads == ("aten.mm.default", "aten.relu.default")
    composite = dispatched(Call.of(torch.einsum, "ij,jk->ik", X, Y))
    assert not composite.is_front


def test_what_the_result_does_not_depend_on_does_not_count():
    def function(x, y):
        x.sum()
        return torch.mm(x, y).view(4, 8)

    assert dispatched(Call.of(function, X, Y)).overloads == ("aten.mm.default",)


def test_a_front_is_found_on_meta_as_well():
    def alike(x, y):  # both tensors look the same: nothing but themselves tells them apart
        return torch.sub(y, x)

    meta = torch.empty(4, 6, device="meta"), torch.empty(4, 6, device="meta")
    assert dispatched(Call.of(alike, *meta)).inputs == (1, 0)


def test_a_call_reaches_overloads_and_leaves_its_tensors_alone():
    x = torch.rand(3)
    before = x.clone()
    assert names(reached(Call.of(lambda t: t.add_(1).detach().neg(), x))) == [
        "aten.add_.Tensor",
        "aten.neg.default",
    ]
    assert torch.equal(x, before)
    assert names(reached(Call.of(aten.matmul.default, X, Y))) == ["aten.mm.default"]
    assert reaches_dispatch(aten.mm.default) and not reaches_dispatch(aten.matmul.default)


def test_recorded_calls_keep_the_values_they_were_made_with():
    def overwriting(x):
        y = x + 1
        return y.mul_(0) + x

    add, mul, _ = overload_calls(Call.of(overwriting, torch.ones(2)), backward=False)
    assert (mul["self"] == 2).all()
    assert (add["self"] == 1).all()


def test_backward_is_recorded_too_unless_no_gradient_is_wanted():
    call = Call.of(torch.tanh, torch.rand(4))
    assert "aten.tanh_backward.default" in names(overload_calls(call))
    assert names(overload_calls(call, backward=False)) == ["aten.tanh.default"]


def test_of_a_call_that_raises_what_came_before_is_recorded():
    def raising(x):
        x.neg()
        raise RuntimeError

    assert names(overload_calls(Call.of(raising, X), backward=False)) == ["aten.neg.default"]


FORKED = """
import os, sys, torch
from torch._subclasses import FakeTensorMode
from shardwise.calls import Call, overload_calls

with FakeTensorMode():
    torch.ones(1)
torch.ones(1, requires_grad=True).sum().backward()
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
overload_calls(Call.of(torch.tanh, torch.ones(1)))
"""


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="without CUDA autograd starts no threads")
def test_a_process_in_which_no_backward_runs_is_refused():
    result = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    assert result.returncode == 1
    assert "UsageError: no backward can be recorded in a process forked from" in result.stderr
