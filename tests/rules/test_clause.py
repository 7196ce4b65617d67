import pytest
import torch

from shardwise import Rule
from shardwise.errors import UsageError
from shardwise.rules import Clause, merged

TEXTS = [
    "S(d), S(d) -> S(d) when d != dim",
    "S(d) -> S(d-before(d, dim)) when d not in dim and not keepdim",
    "S(d) -> P(avg) when d in dim for even shards",
    "[S(d)] -> S(d) when d != dim",
    "S(d) -> [S(d-1)] when d > dim",
    "P(sum), S(1), S(0) -> P(sum)",
    "S(dims[d]) -> S(d)",
    "R -> S(d) with local sizes",
    "S(0), R -> S(0), -",
    "S(d) -> P(max) when d in dim for nonempty shards",
    "P(sum|avg), R -> P(sum|avg)",
]


@pytest.mark.parametrize("text", TEXTS)
def test_clauses_print_as_they_read(text):
    assert str(Clause.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("S(d), S(d)", "has no '->'"),
        ("Q(d) -> S(d)", "is not a term"),
        ("[S(d) -> S(d)", "is not a term"),
        ("P(mean) -> R", "unknown reduction 'mean'"),
        ("P(sum|mean) -> R", "unknown reduction 'mean'"),
        ("P(sum|avg) -> P(max|min)", "partials are of one reduction at a time"),
        ("S(d ->) -> R", "is not a term"),
        ("S(d) -> S(d) when d !", "is not an expression"),
        ("S(d) -> S(d) when open('x')", "is not an expression for clauses"),
        ("S(lambda: d) -> R", "is not an expression for clauses"),
        ("S(d) -> S(d) when d.real", "is not an expression for clauses"),
        ("S(d) -> S(d) when d.index(0)", "is not an expression for clauses"),
        ("S(d) -> S(d) for odd shards", "write 'for even shards' or 'for nonempty shards'"),
    ],
)
def test_wrong_clauses_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        Clause.parse(text)


def rows(op, clauses, *args, **document):
    rule = Rule.from_document({"op": op, "clauses": [{"rows": c} for c in clauses], **document})
    return [str(r) for r in rule.rows(*args)]


def rand(*shape):
    return torch.rand(shape)


def test_a_clause_of_several_reductions_yields_a_row_for_each():
    assert rows("aten.mul.Tensor", ["P(sum|avg), R -> P(sum|avg)"], rand(4), rand(4)) == [
        "P(sum), R -> P(sum)",
        "P(avg), R -> P(avg)",
    ]


def test_lists_are_sharded_together_only_if_their_shapes_are_the_same():
    clause, two = ["[S(d)], [S(d)] -> [S(d)]"], [rand(4), rand(4, 6)]
    assert rows("aten._foreach_add.List", clause, [rand(4, 6), rand(4, 6)], [rand(4, 6), rand(4, 6)])
    assert not rows("aten._foreach_add.List", clause, [rand(4, 6), rand(6)], [rand(4, 6), rand(4, 6)])
    assert rows("aten._foreach_add.List", clause, two, two) == ["S(0), S(0), S(0), S(0) -> S(0), S(0)"]


def test_clauses_that_differ_in_their_reduction_alone_are_merged():
    texts = ["P(min) -> P(max)", "P(avg) -> P(avg) when keepdim", "P(max) -> P(max)", "P(min) -> P(min)"]
    assert [str(c) for c in merged([Clause.parse(text) for text in texts])] == [
        "P(min) -> P(max)",
        "P(avg) -> P(avg) when keepdim",
        "P(max|min) -> P(max|min)",
    ]


def test_a_variable_runs_over_the_dims_that_can_be_sharded():
    assert rows("aten.relu.default", ["S(d) -> S(d)"], rand(4, 1, 8)) == ["S(0) -> S(0)", "S(2) -> S(2)"]


@pytest.mark.parametrize("dim", [1, -2])
def test_dims_are_counted_from_zero(dim):
    found = rows("aten._softmax.default", ["S(d) -> S(d) when d != dim"], rand(4, 6, 8), dim, False)
    assert found == ["S(0) -> S(0)", "S(2) -> S(2)"]


def test_no_dims_mean_all_or_none():
    clause = ["S(d) -> P(sum) when d in dim"]
    assert rows("aten.sum.dim_IntList", clause, rand(4, 6), None) == ["S(0) -> P(sum)", "S(1) -> P(sum)"]
    assert rows("aten.sum.dim_IntList", clause, rand(4, 6), None, no_dims="none") == []


def test_operands_broadcast_from_the_right():
    found = rows("aten.add.Tensor", ["S(d), S(d) -> S(d)"], rand(4, 6, 8), rand(6, 1), broadcast=True)
    assert found == ["S(0), R -> S(0)", "S(1), S(0) -> S(1)", "S(2), R -> S(2)"]


def test_absent_tensors_have_no_placement():
    clause = ["S(1), S(1), P(sum) -> P(sum)"]
    conv = (rand(2, 4, 6, 6), rand(8, 4, 3, 3))
    rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert rows("aten.convolution.default", clause, *conv, None, *rest) == ["S(1), S(1) -> P(sum)"]
    assert rows("aten.convolution.default", clause, *conv, rand(8), *rest) == ["S(1), S(1), P(sum) -> P(sum)"]


def test_lists_of_tensors_are_placed_alike():
    assert rows("aten.cat.default", ["[S(d)] -> S(d) when d != dim"], [rand(4, 6)] * 3, 1) == [
        "S(0), S(0), S(0) -> S(0)"
    ]
    assert rows("aten.unbind.int", ["S(d) -> [S(d-1)] when d > dim"], rand(2, 6), 0) == ["S(1) -> S(0), S(0)"]


def test_a_rule_round_trips_through_yaml():
    text = """
op: aten.unsqueeze.default
dims_of: output
clauses:
- rows: S(d) -> S(d) when d < dim
  reason: batch dim
- rows: S(d-1) -> S(d) when d > dim
evidence:
  calls: 25
"""
    rule = Rule.from_yaml(text)
    assert Rule.from_yaml(rule.to_yaml()) == rule
    assert [str(r) for r in rule.rows(rand(4, 6), -1)] == ["S(0) -> S(0)", "S(1) -> S(1)"]
    assert [str(r) for r in rule.rows(rand(4, 6), 0)] == ["S(0) -> S(1)", "S(1) -> S(2)"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"op": "aten.mm.default"}, "expected the field 'clauses'"),
        ({"clauses": []}, "expected the field 'op'"),
        ({"op": "aten.mm.default", "clauses": [{"reason": "none"}]}, "expected the field 'rows'"),
        ({"op": "aten.mm.default", "clauses": [{"rows": 3}]}, "rows: expected text, found 3"),
        (["aten.mm.default"], "expected an object, found a list of 1"),
    ],
)
def test_a_rule_without_its_parts_is_refused(document, message):
    with pytest.raises(UsageError, match=message):
        Rule.from_document(document)


def test_an_unknown_operator_is_named():
    with pytest.raises(UsageError, match="no operator is registered as"):
        Rule("aten.nothing.default", ()).rows(rand(4))


def test_a_rule_that_is_no_yaml_is_refused():
    with pytest.raises(UsageError, match="this is not valid YAML: while parsing"):
        Rule.from_yaml("op: [aten.mm.default")


@pytest.mark.parametrize(
    ("clause", "name"),
    [
        ("S(d) -> S(d) when d != dimm", "dimm"),
        ("S(dimm) -> S(dimm)", "dimm"),
    ],
)
def test_a_clause_that_speaks_of_no_argument_is_refused(clause, name):
    rule = Rule("aten._softmax.default", (Clause.parse(clause),))
    with pytest.raises(UsageError, match=f"speaks of '{name}': the operator's arguments are self, dim, half"):
        rule.rows(rand(4, 6), 1, False)
