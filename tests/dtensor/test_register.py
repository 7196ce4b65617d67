"""Rules given to DTensor: every shape of signature, and nothing left behind."""

from dataclasses import dataclass, field

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from shardwise import Row
from shardwise.dtensor import record_collectives, register, registered, unregister, use_search
from shardwise.errors import UsageError
from shardwise.rules import Rule
from tests.versions import from_torch

aten = torch.ops.aten


@dataclass
class TextRule:
    """A rule whose rows are the same for every call; it remembers the calls."""

    op: object
    texts: tuple
    name: str = "test"
    shards: str = "any"
    calls: list = field(default_factory=list)

    def rows(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        return [Row.parse(text, self.shards) for text in self.texts]


LARGE = 1024  # elements of a dim: of smaller tensors an all-gather is as quick as an all-to-all


@pytest.fixture(autouse=True)
def clean():
    yield
    for op in registered():
        unregister(op)


@pytest.fixture
def mesh(simulated_ranks):
    with simulated_ranks(4) as mode:
        yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), mode


def whole(tensor):
    full = tensor.full_tensor()
    return full._local_tensors[0] if hasattr(full, "_local_tensors") else full


def spread(mesh, tensor, *placements):
    return distribute_tensor(tensor, mesh[0], placements, src_data_rank=None)


def same(mode, tensor, expected):
    full = whole(tensor)
    with mode.disable():
        torch.testing.assert_close(full, expected)


def test_a_rule_decides_how_an_operator_is_sharded(mesh):
    x, y = torch.randn(LARGE, LARGE), torch.randn(LARGE, LARGE)
    register(TextRule("aten.mm.default", ("S(0), R -> S(0)",)))
    a, b = spread(mesh, x, Shard(0), Shard(1)), spread(mesh, y, Replicate(), Shard(0))
    result = torch.mm(a, b)
    assert result.placements == (Shard(0), Shard(0))  # not partial over tp: this rule does not say so
    same(mesh[1], result, x @ y)


def test_unregistering_gives_back_what_was_there(mesh):
    propagator = DTensor._op_dispatcher.sharding_propagator
    tables = ("op_single_dim_strategy_funcs", "op_strategy_funcs", "op_to_rules", "op_to_schema_info")
    before = {name: dict(getattr(propagator, name)) for name in tables}
    a, b = (
        spread(mesh, torch.randn(8, 6), Shard(1), Shard(1)),
        spread(mesh, torch.randn(6, 4), Shard(0), Shard(0)),
    )
    assert torch.mm(a, b).placements == (Partial("sum"), Partial("sum"))
    rules = [
        TextRule("aten.mm.default", ()),
        TextRule(aten.cat.default, ()),
        TextRule("aten.view.default", ()),
    ]
    for rule in rules:
        register(rule)
    assert torch.mm(a, b).placements == (Replicate(), Replicate())
    for rule in rules:
        unregister(rule)
    assert {name: dict(getattr(propagator, name)) for name in tables} == before
    assert torch.mm(a, b).placements == (Partial("sum"), Partial("sum"))


def test_registering_twice_names_both_rules():
    register(TextRule("aten.mm.default", (), name="first"))
    with pytest.raises(
        UsageError, match=r"aten\.mm\.default is already registered by rule 'first'.*rule 'second'"
    ):
        register(TextRule("aten.mm.default", (), name="second"))
    assert registered() == {"aten.mm.default": "first"}
    unregister("aten.mm.default")
    with pytest.raises(UsageError, match="not registered"):
        unregister("aten.mm.default")


@pytest.mark.parametrize(
    ("op", "message"), [("aten.nothing.default", "no operator"), ("mm", "give an overload")]
)
def test_an_unknown_operator_is_one_sentence(op, message):
    with pytest.raises(UsageError, match=message):
        register(TextRule(op, ()))


def test_rules_of_clauses_are_rules(mesh):
    register(Rule.from_yaml("op: aten._softmax.default\nclauses: [{rows: S(d) -> S(d) when d != dim}]"))
    x = torch.randn(4, 8)
    for dim, placement in [(1, Shard(0)), (0, Shard(1))]:
        result = torch.softmax(spread(mesh, x, Shard(0), Replicate()), dim)
        assert set(result.placements) == {placement, Replicate()}
        same(mesh[1], result, x.softmax(dim))


def test_open_kinds_follow_the_nesting_order_of_the_inputs(mesh):
    from torch.distributed.tensor.placement_types import _StridedShard

    x, y = torch.randn(8, 6), torch.randn(6, 4)
    register(TextRule("aten.mm.default", ("S(0, sf=*), R -> S(0, sf=*)",)))
    a = spread(mesh, x, _StridedShard(0, split_factor=2), Shard(0))
    with record_collectives() as seen:
        result = torch.mm(a, spread(mesh, y, Replicate(), Replicate()))
    assert result.placements == (_StridedShard(0, split_factor=2), Shard(0))
    assert seen.collectives == []
    same(mesh[1], result, x @ y)


def test_rows_for_even_shards_are_dropped_where_shards_are_uneven(mesh):
    """And only there: PyTorch has one switch for the operator, a row has one of its own."""
    register(TextRule("aten.mean.dim", ("S(0) -> P(avg)",), shards="even"))
    for rows, placements in [(8, (Partial("avg"), Partial("avg"))), (6, (Partial("avg"), Replicate()))]:
        x = torch.randn(rows, 3)
        result = torch.mean(spread(mesh, x, Shard(0), Shard(0)), [0])
        assert result.placements == placements
        same(mesh[1], result, x.mean(0))
    x = torch.randn(5, 3)
    result = torch.mean(spread(mesh, x, Shard(0), Shard(0)), [0])
    assert result.placements == (Replicate(), Replicate())
    same(mesh[1], result, x.mean(0))


def test_rows_that_hold_for_any_shards_take_uneven_and_empty_ones(mesh):
    register(TextRule("aten.sin.default", ("S(0) -> S(0)",)))
    x = torch.randn(5, 3)
    with record_collectives() as seen:
        result = torch.sin(spread(mesh, x, Shard(0), Shard(0)))
    assert (result.placements, seen.collectives) == ((Shard(0), Shard(0)), [])
    same(mesh[1], result, x.sin())


def test_rows_may_depend_on_arguments_that_are_no_tensors(mesh):
    class Softmax(TextRule):
        def rows(self, x, dim, half):
            return [Row.parse(f"S({d}) -> S({d})") for d in range(x.ndim) if d != dim % x.ndim]

    register(Softmax("aten._softmax.default", ()))
    x = torch.randn(4, 8)
    a = spread(mesh, x, Shard(0), Replicate())
    for dim, placement in [(1, Shard(0)), (0, Shard(1)), (-1, Shard(0))]:
        result = torch.softmax(a, dim)
        assert set(result.placements) == {placement, Replicate()}
        same(mesh[1], result, x.softmax(dim))


def test_lists_of_tensors_count_one_by_one(mesh):
    register(TextRule("aten.cat.default", ("S(0), S(0), S(0) -> S(0)", "P(sum), P(sum), P(sum) -> P(sum)")))
    parts = [torch.randn(LARGE, LARGE + n) for n in (2, 3, 4)]
    spreads = [
        spread(mesh, parts[0], Shard(0), Replicate()),
        *(spread(mesh, p, Shard(0), Shard(1)) for p in parts[1:]),
    ]
    result = torch.cat(spreads, 1)
    assert result.placements == (Shard(0), Shard(0))
    same(mesh[1], result, torch.cat(parts, 1))


@from_torch("2.12", "DTensor counts a list of outputs as one tensor")
def test_outputs_may_be_a_list(mesh):
    register(TextRule("aten.split.Tensor", ("S(0) -> S(0), S(0), S(0)",)))
    x = torch.randn(LARGE, 3 * LARGE + 3)
    results = torch.split(spread(mesh, x, Shard(0), Shard(1)), LARGE + 1, 1)
    for result, expected in zip(results, x.split(LARGE + 1, 1), strict=True):
        assert result.placements == (Shard(0), Shard(0))
        same(mesh[1], result, expected)


def test_outputs_may_be_missing(mesh):
    rows = ("S(0), S(0), S(0), S(0), R, R -> S(0), -, -",)
    register(TextRule("aten.native_layer_norm_backward.default", rows))
    gradient, x, weight, bias = torch.randn(8, 6), torch.randn(8, 6), torch.randn(6), torch.randn(6)
    _, mean, rstd = aten.native_layer_norm.default(x, [6], weight, bias, 1e-5)
    arguments = (gradient, x, [6], mean, rstd, weight, bias, [True, False, False])
    expected = aten.native_layer_norm_backward.default(*arguments)[0]
    placed = [
        spread(mesh, a, *((Shard(0), Shard(0)) if len(a) == 8 else (Replicate(), Replicate())))
        if isinstance(a, torch.Tensor)
        else a
        for a in arguments
    ]
    results = aten.native_layer_norm_backward.default(*placed)
    assert results[0].placements == (Shard(0), Shard(0))
    assert results[1] is None and results[2] is None
    same(mesh[1], results[0], expected)


def test_operators_in_place_keep_their_tensor_where_it_is(mesh):
    register(TextRule("aten.mul_.Tensor", ("S(0), S(0) -> S(0)", "S(1), S(1) -> S(1)")))
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    a, b = spread(mesh, x.clone(), Shard(0), Shard(1)), spread(mesh, y, Shard(1), Shard(1))
    result = a.mul_(b)
    assert result is a
    assert a.placements == (Shard(0), Shard(1))
    same(mesh[1], a, x * y)


def test_out_variants_write_where_the_result_lies(mesh):
    register(TextRule("aten.add.out", ("S(0), S(0), S(0) -> S(0)", "S(1), S(1), S(1) -> S(1)")))
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    out = spread(mesh, torch.zeros(4, 6), Shard(1), Shard(0))
    torch.add(spread(mesh, x, Shard(0), Replicate()), spread(mesh, y, Shard(0), Shard(1)), out=out)
    assert out.placements == (Shard(1), Shard(0))
    same(mesh[1], out, x + y)


def scaled(x, *, scale, shift):
    return x * scale + shift


def scale_into(x, factor):
    x.mul_(factor)


library = torch.library.Library("shardwise_register", "DEF")
library.define("scaled(Tensor x, *, Tensor scale, Tensor shift) -> Tensor")
library.define("scale_into(Tensor(a!) x, Tensor factor) -> ()")
library.impl("scaled", scaled, "CompositeExplicitAutograd")
library.impl("scale_into", scale_into, "CompositeExplicitAutograd")


def test_tensors_may_be_keyword_arguments_in_any_order(mesh):
    """DTensor never moves those: rows are chosen to suit them."""
    rule = TextRule(
        "shardwise_register.scaled.default",
        ("S(0), S(0), R -> S(0)", "S(1), S(1), S(0) -> S(1)"),
    )
    register(rule)
    x, scale, shift = torch.randn(4, 6), torch.randn(4, 6), torch.randn(6)
    arguments = {
        "shift": spread(mesh, shift, Shard(0), Replicate()),
        "scale": spread(mesh, scale, Shard(1), Replicate()),
    }
    result = torch.ops.shardwise_register.scaled(spread(mesh, x, Shard(0), Shard(0)), **arguments)
    assert result.placements == (Shard(1), Replicate())
    assert all(t.device.type == "meta" for t in (*rule.calls[0][0], *rule.calls[0][1].values()))
    same(mesh[1], result, x * scale + shift)


def test_operators_without_outputs_keep_what_they_write_where_it_is(mesh):
    register(TextRule("shardwise_register.scale_into.default", ("S(0), S(0) ->", "S(1), S(1) ->")))
    x, factor = torch.randn(4, 6), torch.randn(4, 6)
    a = spread(mesh, x.clone(), Shard(1), Shard(0))
    torch.ops.shardwise_register.scale_into(a, spread(mesh, factor, Shard(0), Shard(0)))
    assert a.placements == (Shard(1), Shard(0))
    same(mesh[1], a, x * factor)


def test_rows_that_need_a_local_form_are_left_out(mesh):
    class WithLocalForm(TextRule):
        def rows(self, *args):
            return [Row.parse("S(0) -> S(0)", local="offset")]

    register(WithLocalForm("aten.tril.default", ()))
    x = torch.randn(4, 4)
    result = torch.tril(spread(mesh, x, Shard(0), Replicate()))
    assert result.placements == (Replicate(), Replicate())
    same(mesh[1], result, x.tril())


def test_a_change_that_dtensor_refuses_is_not_chosen_unless_we_run_it(mesh):
    """A shard can become partial by way of replicate, which DTensor's own redistribution does not do."""
    register(TextRule("aten.add.Tensor", ("P(sum), P(sum) -> P(sum)",)))
    x = torch.randn(4, 6)
    a = spread(mesh, x, Shard(0), Replicate())
    b = DTensor.from_local(mesh[1].rank_map(lambda rank: torch.ones(4, 6)), mesh[0], [Partial(), Replicate()])
    same(mesh[1], a + b, x + 2)
    with use_search(cluster="laptop"):
        same(mesh[1], a + b, x + 2)


def test_a_row_with_the_wrong_number_of_tensors_is_one_sentence(mesh):
    register(TextRule("aten.mm.default", ("S(0) -> S(0)",)))
    a = spread(mesh, torch.randn(4, 4), Shard(0), Replicate())
    with pytest.raises(RuntimeError, match=r"row 'S\(0\) -> S\(0\)' has 1 inputs but the call has 2 tensors"):
        torch.mm(a, a)
