"""Operators by name, whatever kind of name it is."""

import pytest
import torch

from shardwise.calls import op_name, overload, packet_name, resolve_op
from shardwise.errors import UsageError


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("torch.mm", torch.mm),
        ("mm", torch.mm),
        ("aten.mm", torch.ops.aten.mm),
        ("aten::mm", torch.ops.aten.mm),
        ("aten.mm.default", torch.ops.aten.mm.default),
        ("aten::mm.default", torch.ops.aten.mm.default),
        ("torch.nn.functional.layer_norm", torch.nn.functional.layer_norm),
        ("nn.functional.layer_norm", torch.nn.functional.layer_norm),
    ],
)
def test_a_name_means_an_operator(name, op):
    assert resolve_op(name) is op or resolve_op(name) == op


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch.sofmax", "did you mean 'softmax'"),
        ("aten.sofmax", "did you mean 'softmax'"),
        ("nowhere::op", "unknown op 'nowhere::op'"),
        ("torch.pi", "'torch.pi' is a float, not an operator"),
        (3, "unknown op 3"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name, message):
    with pytest.raises(UsageError, match=message):
        resolve_op(name)


def test_overloads_by_name():
    assert overload("aten.add.Tensor") is torch.ops.aten.add.Tensor
    assert overload("aten.mm") is torch.ops.aten.mm.default
    for name in ("aten.mm.nothing", "aten.nothing.default", "torch.mm"):
        with pytest.raises(UsageError, match="no operator is registered as"):
            overload(name)


def test_names_of_operators():
    assert op_name(torch.mm) == "torch.mm"
    assert op_name(torch.ops.aten.add.Tensor) == "aten.add.Tensor"
    assert packet_name(torch.ops.aten.add.Tensor) == "aten.add"
