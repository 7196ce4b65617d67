"""What is known about operators: from schemas and tags, from the table, and by what they declare."""

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from shardwise import UsageError
from shardwise.calls import Call, Facts, declare, facts, overload
from shardwise.calls._fact_table import TABLE
from shardwise.calls._facts import _said_by_torch


@torch.library.custom_op("facts::turned", mutates_args=())
def turned(x: Tensor, along: int) -> Tensor:
    return x.flip(along)


@torch.library.custom_op("facts::resized", mutates_args=())
def resized(x: Tensor, along: int, target: list[int]) -> Tensor:
    return x.repeat_interleave(2, along)


@pytest.mark.parametrize(
    ("name", "fact", "value"),
    [
        # From schemas, tags and torch's formulas.
        ("aten.t.default", "view", True),
        ("aten.mm.default", "view", False),
        ("aten.mul.Tensor", "elementwise", True),
        ("aten.bernoulli.default", "random", True),
        ("aten._foreach_add.List", "foreach", True),
        ("aten._foreach_pow.ScalarAndTensor", "foreach", True),
        ("aten._fused_adam_.default", "foreach", True),
        ("aten.cat.default", "foreach", False),
        ("aten.unbind_copy.int_out", "foreach", False),
        ("aten.unsqueeze_.default", "reshapes_in_place", True),
        ("aten.sum.dim_IntList", "kernel", "reduction"),
        ("aten.convolution.default", "kernel", "matmul"),
        ("aten._scaled_dot_product_flash_attention.default", "dropout", "dropout_p"),
        ("aten.mm.default", "builtin", True),
        ("shardwise.attention.default", "builtin", False),
        # From the table.
        ("aten._unsafe_view.default", "view", True),
        ("aten.detach.default", "identity", True),
        ("aten.detach_.default", "reshapes_in_place", False),
        ("aten.native_layer_norm.default", "kernel", "reduction"),
        ("aten.log_normal.default", "kernel", None),
        ("aten._to_copy.default", "cast", True),
        ("aten.empty_like.default", "uninitialised", True),
        ("aten.index.Tensor", "lookup", True),
        ("aten.randn_like.default", "draws", "randn"),
        ("_c10d_functional.all_reduce.default", "collective", "all_reduce"),
        # Declared beside the operator's definition.
        ("shardwise.attention_backward.default", "kernel", "attention_backward"),
        ("shardwise.attention.default", "dropout", "dropout"),
    ],
)
def test_facts(name, fact, value):
    assert getattr(facts(overload(name)), fact) == value


def test_every_operator_of_the_table_exists():
    for names, _ in TABLE:
        for name in names:
            packet = getattr(getattr(torch.ops, name.split(".")[0]), name.split(".")[1])
            assert name.count(".") == 1 or name.split(".")[2] in packet.overloads(), name


def test_the_table_repeats_nothing_that_torch_says():
    for names, stated in TABLE:
        for name in names:
            packet = getattr(getattr(torch.ops, name.split(".")[0]), name.split(".")[1])
            overloads = packet.overloads() if name.count(".") == 1 else [name.split(".")[2]]
            said = [Facts(**_said_by_torch(getattr(packet, which))) for which in overloads]
            for fact, value in stated.items():
                assert any(getattr(known, fact) != value for known in said), (name, fact)


def test_what_is_declared_of_an_operator_holds_for_all_its_overloads():
    declare("facts.turned", kernel="reduction", cast=True)
    declare(turned, cast=False)
    op = torch.ops.facts.turned.default
    assert facts(op) == facts(turned)
    assert facts(op).kernel == "reduction" and not facts(op).cast


def test_an_operator_declares_what_its_arguments_mean():
    op = torch.ops.facts.resized.default
    arguments = torch.rand(4, 6), 1, [4, 12]
    assert Call(op, arguments).size_arguments == ()
    declare(op, dims=("along",), sizes=("target",))
    assert facts(op).dims == ("along",)
    assert Call(op, arguments).size_arguments == ("target",)


def test_a_function_has_no_facts():
    assert facts(lambda x: x) == Facts()


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"kernle": "matmul"}, "unknown fact 'kernle' about an operator: use one of builtin, view"),
        ({"kernel": "fast"}, "kernel='fast' is not known: use one of matmul, attention"),
        ({"dims": "along"}, r"dims='along' is not a tuple of names of arguments: use dims=\('dim',\)"),
    ],
)
def test_what_is_no_fact_is_refused(known, message):
    with pytest.raises(UsageError, match=message):
        declare(turned, **known)


def test_what_is_no_operator_is_refused():
    with pytest.raises(UsageError, match="'softmax' does not name an operator"):
        declare("softmax", cast=True)


def test_every_fact_is_explained():
    for known in fields(Facts):
        assert f"`{known.name}`" in Facts.__doc__, known.name
