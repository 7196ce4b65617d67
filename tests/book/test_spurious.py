"""Clauses that survive experiments and are left out of the book all the same."""

import pytest

from shardwise.book._spurious import without_spurious
from shardwise.rules import Clause, Rule


def kept(op, *clauses):
    return [str(c) for c in without_spurious(Rule(op, tuple(map(Clause.parse, clauses)))).clauses]


@pytest.mark.parametrize(
    ("op", "clause"),
    [
        ("aten.slice.Tensor", "S(d) -> S(d) when start == 0 and end == 20 for even shards"),
        ("aten.mul.Scalar", "P(sum) -> P(max) when other == 0"),
        ("aten.isposinf.default", "P(max) -> R"),
        ("aten.soft_margin_loss.default", "S(0), R -> P(avg) when ndim(0) == 5 for even shards"),
        ("aten.upsample_linear1d.default", "P(max) -> P(max) when scales == 0.6"),
        ("aten.special_xlog1py.default", "P(sum), R -> P(sum) when ndim(0) == 1"),
        ("aten.digamma.default", "P(avg) -> P(avg) when size(0, -1) == 1"),
        ("aten.index_put.default", "P(sum), [S(d)], S(d) -> P(sum) when size(0, -1) == size(2, -1)"),
    ],
)
def test_spurious_are_left_out(op, clause):
    assert kept(op, clause) == []


@pytest.mark.parametrize(
    ("op", "clause"),
    [
        ("aten.mean.dim", "S(d) -> P(avg) when d in dim for even shards"),
        ("aten.masked_fill.Scalar", "P(sum), R -> P(sum) when value == 0"),
        ("aten.add.Tensor", "R, P(max) -> P(min) when alpha < 0"),
        ("aten.add.Tensor", "P(sum), P(sum) -> P(sum) when ndim(0) == ndim(1)"),
        ("aten.soft_margin_loss.default", "S(d), S(d) -> P(sum) when reduction == 2"),
    ],
)
def test_what_the_operator_means_is_kept(op, clause):
    assert kept(op, clause) == [clause]


def test_values_that_do_not_matter_at_all_are_kept():
    clauses = ("R, P(max) -> R", "R, P(sum) -> R")
    assert kept("aten.sigmoid_backward.default", *clauses) == ["R, P(sum|max) -> R"]
