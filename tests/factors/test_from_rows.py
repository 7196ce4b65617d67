import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardwise import Row
from shardwise.errors import UsageError
from shardwise.factors import FactorRule, factors_of_call
from shardwise.placements import PARTIALS, SHARDS
from shardwise.rules import Rule


def rule_of(rows, inputs, outputs):
    return FactorRule.from_rows([Row.parse(row) for row in rows], (inputs, outputs))


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "text"),
    [
        (  # mm
            ["S(0), R -> S(0)", "R, S(1) -> S(1)", "S(1), S(0) -> P(sum)"],
            [(8, 16), (16, 4)],
            [(8, 4)],
            "([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k} rows={i; j; k}",
        ),
        (  # addmm: the bias must be partial when k is sharded
            ["R, S(0), R -> S(0)", "S(0), R, S(1) -> S(1)", "P(sum), S(1), S(0) -> P(sum)"],
            [(4,), (8, 16), (16, 4)],
            [(8, 4)],
            "([j], [i, k], [k, j])->([i, j]) {i=8, j=4, k=16} "
            "reduction={k} companion={k:P(sum)} rows={i; j; k}",
        ),
        (  # aminmax
            ["S(0) -> P(min), P(max)"],
            [(8,)],
            [(), ()],
            "([i])->([], []) {i=8} reduction={i:min/max} rows={i}",
        ),
        (  # view that splits, and the strided shard that goes with it
            ["S(0) -> S(0)", "S(0, sf=2) -> S(1)"],
            [(8,)],
            [(2, 4)],
            "([ij])->([i, j]) {i=2, j=4} shards={i:any, j:any} rows={i; j}",
        ),
        (  # the same view where only the outer part may be sharded: the rest of the dim is filled
            ["S(0) -> S(0)"],
            [(8,)],
            [(2, 4)],
            "([ij])->([i, k]) {i=2, j=4, k=4} "
            "need_replication={j, k} blocked_propagation={j, k} shards={i:any} rows={i}",
        ),
        (  # rows that carry partials, and the row of all operators
            ["R -> R", "S(0) -> S(0)", "P(sum) -> P(sum)"],
            [(8,)],
            [(8,)],
            "([i])->([i]) {i=8} rows={R -> R; i; P(sum) -> P(sum)}",
        ),
        (  # of two rows for one dim the one that shards more tensors is the factor
            ["S(0), R -> S(0)", "S(0), S(0) -> S(0)"],
            [(8,), (8,)],
            [(8,)],
            "([i], [i])->([i]) {i=8} rows={S(0), R -> S(0); i}",
        ),
        (  # softmax: nothing can be split along its dim, and nothing passes there
            ["S(0) -> S(0)"],
            [(8, 4, 1)],
            [(8, 4, 1)],
            "([i, j, 1])->([i, k, 1]) {i=8, j=4, k=4} "
            "need_replication={j, k} blocked_propagation={j, k} rows={i}",
        ),
        (["S(0) -> S(0), -"], [(8,)], [(8,), None], "([i])->([i], -) {i=8} rows={i}"),
        (["S(0) -> S(0), R"], [(8,)], [(8,), ()], "([i])->([i], []) {i=8} unaffected={i} rows={i}"),
    ],
)
def test_factors_from_rows(rows, inputs, outputs, text):
    rule = rule_of(rows, inputs, outputs)
    assert str(rule) == text
    assert FactorRule.parse(text) == rule


PLACEMENTS = ["R", "S(0)", "S(1)", "S(0, sf=2)", "S(1, sf=3)", *(f"P({name})" for name in PARTIALS)]


@st.composite
def calls(draw):
    """Shapes of a call, and any rows for it: sensible or not, duplicates included."""

    def shapes(count):
        return [
            tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=2, max_size=3)))
            for _ in range(draw(count))
        ]

    inputs, outputs = shapes(st.integers(0, 3)), shapes(st.integers(1, 2))
    missing = draw(st.booleans())
    rows = []
    for _ in range(draw(st.integers(0, 8))):
        left = ", ".join(draw(st.sampled_from(PLACEMENTS)) for _ in inputs)
        right = [draw(st.sampled_from(PLACEMENTS)) for _ in outputs] + ["-"] * missing
        local = draw(st.none() | st.just("offset"))
        rows.append(Row.parse(f"{left} -> {', '.join(right)}", draw(st.sampled_from(SHARDS)), local))
    return rows, (inputs, [*outputs, *[None] * missing])


@given(calls())
def test_nothing_is_lost(call):
    rows, shapes = call
    rule = FactorRule.from_rows(rows, shapes)
    assert rule.rows() == rows
    assert FactorRule.parse(str(rule)) == rule
    rule.verify(*shapes)


@given(calls())
def test_factors_of_a_dim_multiply_to_its_size(call):
    rule = FactorRule.from_rows(*call)
    tensors = zip((*rule.inputs, *rule.outputs), (*call[1][0], *call[1][1]), strict=True)
    for tensor, shape in tensors:
        for names, size in zip(tensor or (), shape or (), strict=True):
            assert rule.size_of(names) == size


@pytest.mark.parametrize(
    ("row", "inputs", "outputs", "message"),
    [
        ("S(0) -> S(0)", [(8,), (8,)], [(8,)], "has 1 inputs but there are 2 shapes"),
        ("S(1) -> S(0)", [(8,)], [(8,)], r"shards dim 1 of input 0, which has shape \(8,\)"),
        ("S(0) -> -", [(8,)], [(8,)], "disagree about output 0"),
        ("S(0) -> R", [(8,)], [None], "disagree about output 0"),
    ],
)
def test_rows_that_are_not_of_the_call_are_refused(row, inputs, outputs, message):
    with pytest.raises(UsageError, match=message):
        rule_of([row], inputs, outputs)


def test_a_rule_made_of_clauses_gives_factors_for_any_call():
    rule = Rule.from_yaml("op: aten._softmax.default\nclauses: [{rows: S(d) -> S(d) when d != dim}]")
    for shape, dim in [((4, 6, 8), 1), ((5, 3), -1), ((7,), 0)]:
        call = (torch.empty(shape, device="meta"), dim, False)
        factors = factors_of_call(rule, *call)
        assert factors.rows() == rule.rows(*call)
        factors.verify([shape], [shape])
