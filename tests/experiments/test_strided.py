"""Strided shards: `check`, discovery and clauses speak of them, and experiments cut strided pieces."""

import pytest
import torch

import shardwise as sw
from shardwise.calls import Call
from shardwise.expansion import Choice, is_valid_for
from shardwise.experiments import ExperimentPolicy, check_choice, open_rows
from shardwise.placements import Row, piece_sizes, shard, split
from shardwise.rules import Clause, Rule, book_rows

X = torch.rand(4, 6, 5)


def test_a_strided_claim_about_a_dim_that_grows_holds_for_even_shards():
    verdict = sw.check(torch.pixel_unshuffle, "S(0, sf=2) -> S(0, sf=2)", torch.rand(6, 4, 4), 2)
    assert verdict and verdict.shards == "even"


@pytest.mark.parametrize(
    ("op", "args", "row", "shards"),
    [
        (torch.relu, (X,), "S(0, sf=*) -> S(0, sf=*)", "any"),
        (torch.add, (X, X), "S(1, sf=*), S(1, sf=*) -> S(1, sf=*)", "any"),
        (torch.mm, (torch.rand(4, 6), torch.rand(6, 5)), "S(1, sf=*), S(0, sf=*) -> P(sum)", "any"),
        (torch.cumsum, (X, 0), "S(1, sf=*) -> S(1, sf=*)", "any"),
        (torch.cumsum, (X, 0), "S(0, sf=*) -> S(0, sf=*)", None),
        (torch.flip, (X, (0,)), "S(0, sf=*) -> S(0, sf=*)", None),
        (torch.pixel_shuffle, (torch.rand(4, 6, 5), 2), "S(1, sf=*) -> S(1, sf=*)", "even"),
        (torch.relu, (X,), "S(0, sf=2) -> S(0)", None),
        (torch.relu, (X,), "S(0, sf=2) -> S(0, sf=3)", None),
    ],
)
def test_a_claim_about_shards_of_any_kind(op, args, row, shards):
    assert sw.check(op, row, *args).shards == shards


def test_a_refuted_kind_is_named():
    kept = sw.check(torch.ops.aten.view.default, "S(0, sf=*) -> S(0)", torch.rand(8, 3), (8, 3))
    assert not kept and kept.reason.startswith("S(0, sf=2) -> S(0): ")


def test_discovery_finds_rows_for_strided_shards():
    rows = ExperimentPolicy(strided=True).discover(torch.renorm, torch.rand(6, 5), 2, 0, 1.0).rows
    assert [row.text for row in rows] == ["S(0, sf=*) -> S(0, sf=*)"]
    assert [row.text for row in sw.discover(torch.renorm, torch.rand(6, 5), 2, 0, 1.0).rows] == [
        "S(0) -> S(0)"
    ]


def test_rows_are_opened_where_experiments_confirm_it():
    call = Call.of(torch.ops.aten.pixel_shuffle.default, torch.rand(4, 6, 5), 2)
    claimed = [
        Row.parse("S(1) -> S(1)"),
        Row.parse("S(1) -> S(1) for even shards"),
        Row.parse("P(sum) -> P(sum)"),
    ]
    assert open_rows(call, claimed) == [claimed[0], claimed[1].opened(), claimed[2]]


def test_a_clause_speaks_of_shards_of_any_kind():
    text = "S(d, sf=*), R -> S(d, sf=*) when d != dim"
    assert str(Clause.parse(text)) == text
    rule = Rule("aten.renorm.default", (Clause.parse("S(dim, sf=*) -> S(dim, sf=*)"),))
    assert rule.rows(torch.rand(4, 5), 2, 1, 1.0) == [Row.parse("S(1, sf=*) -> S(1, sf=*)")]


@pytest.mark.parametrize("size", [0, 1, 5, 6, 10, 12])
@pytest.mark.parametrize("factor", [None, 2, 3])
def test_sizes_of_pieces_are_those_of_the_pieces(size, factor):
    placement = shard(0, factor)
    assert piece_sizes(size, placement, 2) == [len(p) for p in split(torch.arange(size), placement, 2)]


ATEN = torch.ops.aten
CALLS = [
    Call.of(ATEN.renorm.default, torch.rand(7, 5), 2, 0, 0.5),
    Call.of(ATEN.mm.default, torch.rand(7, 6), torch.rand(6, 5)),
    Call.of(ATEN._softmax.default, torch.rand(5, 6, 7), 1, False),
    Call.of(ATEN.pixel_shuffle.default, torch.rand(4, 8, 12), 2),
    Call.of(ATEN.cumsum.default, torch.rand(6, 7), 1),
    Call.of(ATEN.cat.default, [torch.rand(5, 6), torch.rand(3, 6)], 0),
    Call.of(ATEN.amax.default, torch.rand(6, 7), [0]),
    Call.of(ATEN.gather.default, torch.rand(5, 6), 1, torch.randint(6, (5, 4))),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call.op))
@pytest.mark.parametrize(("mesh", "factor"), [("a=2,b=2", 2), ("a=3,b=2", 2), ("a=2,b=3", 3), ("a=2,b=2", 4)])
def test_opened_rows_hold_for_orders_of_axes_and_other_split_factors(call, mesh, factor):
    """Rows are opened by experiments on one axis, with split factors 2 and 3."""
    rows = book_rows(call) or sw.discover(call.op, *call.args).rows
    opened = [row for row in open_rows(call, rows) if row.is_open]
    assert opened
    for row in opened:
        choice = Choice(sw.Mesh.parse(mesh), (row.with_kind(factor), row.with_kind(None)))
        if is_valid_for(choice, call):
            assert check_choice(call, choice), str(choice)
