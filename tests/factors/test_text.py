import gzip
import json

import pytest

from shardwise import Row
from shardwise.errors import UsageError
from shardwise.factors import Factor, FactorRule


def test_all_public_rules_parse_verify_and_print_back(data):
    with gzip.open(data / "shardy" / "rules.jsonl.gz", "rt") as lines:
        cases = [json.loads(line) for line in lines]
    assert len(cases) == 761
    for case in cases:
        rule = FactorRule.parse(case["rule"])
        assert str(rule) == case["rule"]
        assert rule.verify(case["operand_shapes"], case["result_shapes"]) is rule


WRONG = [
    ("([i], [i])", "there is no '->'"),
    ("[i]->([i]) {i=8}", r"the inputs do not begin with '\('"),
    ("([i])->[i] {i=8}", r"the outputs do not begin with '\('"),
    ("([i]->([i]) {i=8}", r"the inputs have a '\(' without its '\)'"),
    ("([i])->([i] {i=8}", r"the outputs have a '\(' without its '\)'"),
    ("([i)->([i]) {i=8}", r"the inputs have a '\[' without its '\]'"),
    ("(i)->([i]) {i=8}", r"the inputs do not begin with '\['"),
    ("([i]) x->([i]) {i=8}", "there is 'x' between the inputs and '->'"),
    ("([i] [i])->([i]) {i=8}", "expected ',' before"),
    ("([i],)->([i]) {i=8}", "the inputs end in ','"),
    ("([i, ])->([i]) {i=8}", "a dim of .* is empty"),
    ("([i*])->([i]) {i=8}", r"'i\*' is not a factor"),
    ("([()])->([i]) {i=8}", r"dim '\(\)' is not of the form"),
    ("(-)->([i]) {i=8}", "an input is '-'"),
    ("([i])->([i])", "factor i of input 0 has no size"),
    ("([i])->([j]) {i=8}", "factor j of output 0 has no size"),
    ("([i])->([i]) {i=8, j=4}", "factor j has a size but no tensor carries it"),
    ("([i, i])->([i]) {i=8}", "factor i is twice in input 0"),
    ("([ii])->([i]) {i=8}", "factor i is twice in input 0"),
    ("([i])->([i]) {i=8, i=8}", "factor i has two sizes"),
    ("([i])->([i]) {i=x}", "size 'i=x' is not of the form 'i=8'"),
    ("([i])->([i]) {i}", "size 'i' is not of the form 'i=8'"),
    ("([i])->([i]) {i=8", "the sizes have a '{' without its '}'"),
    ("([i])->([i]) {i=8} reduction", "is not a group of the form"),
    ("([i])->([i]) {i=8} reduce={i}", "unknown group 'reduce'"),
    ("([i])->([]) {i=8} reduction={j}", "reduction has the unknown factor 'j'"),
    ("([i])->([]) {i=8} reduction={i, i}", "reduction has factor i twice"),
    ("([i])->([]) {i=8} reduction={i} permutation={i}", "both reduction and permutation"),
    ("([i])->([]) {i=8} reduction={i:mean}", "unknown reduction 'mean'"),
    ("([i])->([], []) {i=8} reduction={i:sum/sum/sum}", "factor i has 3 reductions but 2 outputs lack it"),
    ("([i])->([i]) {i=8} reduction={i}", "factor i is in reduction but every output carries it"),
    ("([i])->([i]) {i=8} unaffected={i}", "factor i is in unaffected but every output carries it"),
    ("([i], [])->([i]) {i=8} companion={i}", "companion of factor i has no value"),
    ("([i], [])->([i]) {i=8} companion={i:P(sum)/R}", "factor i has 2 companions but 1 inputs lack it"),
    ("([i], [])->([i]) {i=8} companion={i:Q}", "'Q' is not a placement"),
    ("([i])->([i]) {i=8} shards={i:odd}", "unknown shards 'odd'"),
    ("([i])->([i]) {i=8} rows={k}", "the rows have the unknown factor k"),
    ("([i])->([i]) {i=8} rows={S(0) -> S(0) [odd]}", "unknown shards 'odd'"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[text for text, _ in WRONG])
def test_a_wrong_rule_says_what_is_wrong(text, message):
    with pytest.raises(UsageError, match=message) as error:
        FactorRule.parse(text)
    assert str(error.value).startswith(f"rule {text!r}: ")


def test_each_wrong_rule_has_an_error_of_its_own():
    messages = set()
    for text, _ in WRONG:
        with pytest.raises(UsageError) as error:
            FactorRule.parse(text)
        messages.add(str(error.value).removeprefix(f"rule {text!r}: "))
    assert len(messages) >= 30


@pytest.mark.parametrize(
    ("text", "inputs", "outputs", "message"),
    [
        ("([i])->([i]) {i=8}", [(8,), (8,)], [(8,)], "the rule has 1 inputs but there are 2 shapes"),
        ("([i])->([i]) {i=8}", [(8,)], [], "the rule has 1 outputs but there are 0 shapes"),
        ("([i])->([i]) {i=8}", [(8, 2)], [(8,)], "input 0 has 2 dims but the rule has 1"),
        ("([i])->([i]) {i=8}", [(8,)], [(4,)], "factor i is 8 but dim 0 of output 0 is 4"),
        (
            "([ij])->([i, j]) {i=2, j=4}",
            [(6,)],
            [(2, 4)],
            r"factors i j are 2 \* 4 = 8 but dim 0 of input 0 is 6",
        ),
        (
            "([i, k], [k, j])->([i, j]) {i=8, j=4, k=64} reduction={k}",
            [(8, 64), (32, 4)],
            [(8, 4)],
            "factor k is 64 but dim 0 of input 1 is 32",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(text, inputs, outputs, message):
    with pytest.raises(UsageError, match=message) as error:
        FactorRule.parse(text).verify(inputs, outputs)
    assert text in str(error.value)


def test_where_an_op_changes_sizes_they_may_differ():
    FactorRule.parse("([i, j])->([i, j]) {i=8, j=8} permutation={j}").verify([(8, 8)], [(8, 3)])
    FactorRule.parse("([i, j])->([i, j]) {i=8, j=8} need_replication={j}").verify([(8, 8)], [(8, 12)])


@pytest.mark.parametrize(
    "text",
    [
        "([ij])->([i, j]) {i=2, j=4}",
        "([(rows cols), k])->([rows, cols]) {rows=2, cols=4, k=3} reduction={k}",
        "([i], -)->([i]) {i=8}".replace(", -", ""),
        "([i])->([i], -) {i=8}",
        "([1, i])->([i]) {i=8}",
        "([i, k])->([i], [i]) {i=8, k=4} reduction={k:min/max}",
        "([i, k])->([i], [i]) {i=8, k=4} reduction={k:sum/R}",
        "([i])->([i], []) {i=8} unaffected={i}",
        "([j], [i, k], [k, j])->([i, j]) {i=2, j=3, k=4} reduction={k} companion={k:P(sum)}",
        "([i, k])->([i]) {i=8, k=4} reduction={k:avg} shards={k:even}",
        "([i])->([i]) {i=8} local={i:offset}",
        "([i])->([i]) {i=8} rows={R -> R; i; P(sum) -> P(sum) [even local=scaled]}",
        "()->([])",
    ],
)
def test_these_print_as_they_are_written(text):
    assert str(FactorRule.parse(text)) == text


def test_factors_of_a_rule():
    rule = FactorRule.parse(
        "([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k:max} blocked_propagation={j}"
    )
    assert [factor.name for factor in rule.factors] == ["i", "j", "k"]
    assert rule.by_name["i"] == Factor("i", 8)
    assert rule.by_name["j"].blocked
    assert rule.by_name["k"].kind == "reduction"
    assert rule.row_of("k") == Row.parse("S(1), S(0) -> P(max)")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (
            "([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}",
            ["S(0), R -> S(0)", "R, S(1) -> S(1)", "S(1), S(0) -> P(sum)"],
        ),
        ("([ij])->([i, j]) {i=2, j=4}", ["S(0) -> S(0)", "S(0, sf=2) -> S(1)"]),
        ("([i, j])->([ji]) {i=2, j=4}", ["S(0) -> S(0, sf=4)", "S(1) -> S(0)"]),
        ("([i, j])->([i, j]) {i=8, j=4} permutation={j}", ["S(0) -> S(0)"]),
        ("([i, j])->([i]) {i=8, j=4} need_replication={j}", ["S(0) -> S(0)"]),
        ("([i, j])->([i]) {i=8, j=4}", ["S(0) -> S(0)"]),
        ("([i])->([i], []) {i=8}", []),
        ("([i])->([i], []) {i=8} unaffected={i}", ["S(0) -> S(0), R"]),
        ("([i])->([], []) {i=8} reduction={i:min/max}", ["S(0) -> P(min), P(max)"]),
        ("([i])->([i, j]) {i=8, j=4}", ["S(0) -> S(0)", "R -> S(1)"]),
    ],
)
def test_rows_of_a_rule(text, rows):
    assert [str(row) for row in FactorRule.parse(text).rows()] == rows


def test_a_factor_that_shares_a_dim_holds_for_even_shards():
    rule = FactorRule.parse("([ij, k])->([i, j, k]) {i=2, j=4, k=3}")
    assert [row.shards for row in rule.rows()] == ["even", "even", "any"]
