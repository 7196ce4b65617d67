"""Rules found from sweeps, validated on calls that they were not built from."""

import pytest
import torch
import torch.nn.functional as F
import yaml

import shardwise as sw
from shardwise.calls import Call
from shardwise.emission import analyze_and_synthesize, discover_strategies, yaml_report
from shardwise.synthesis import studies

BATCH = "S(d) -> S(d) when d != dim"
MOVES = {"P(sum|avg|max|min) -> P(sum|avg|max|min)"}
LINEAR = {"P(sum|avg) -> P(sum|avg)"}
REDUCED = {
    "S(d) -> S(d) when d not in dim and keepdim",
    "S(d) -> S(d-before(d, dim)) when d not in dim and not keepdim",
}

RULES = {
    torch.softmax: {BATCH},
    torch.cumsum: {BATCH} | LINEAR,
    torch.sum: REDUCED | LINEAR | {"S(d) -> P(sum) when d in dim"},
    torch.transpose: MOVES
    | {"S(d) -> S(d) when d not in (dim0, dim1)", "S(dim0) -> S(dim1)", "S(dim1) -> S(dim0)"},
    torch.unsqueeze: MOVES | {"S(d) -> S(d) when d < dim", "S(d-1) -> S(d) when d > dim"},
    torch.select: MOVES | {"S(d) -> S(d) when d < dim", "S(d) -> S(d-1) when d > dim"},
}

EVERY = [
    *(torch.linalg.cross, torch.log_softmax, torch.mean, torch.amax, torch.logsumexp, torch.var, torch.sort),
    *(torch.topk, torch.argmax, torch.gather, torch.index_select, torch.flip, torch.roll, torch.tril),
    *(torch.diagonal, torch.cat, torch.stack, torch.squeeze, torch.permute, torch.narrow, torch.unbind),
    *(
        torch.Tensor.expand,
        torch.repeat_interleave,
        F.layer_norm,
        torch.add,
        torch.where,
        torch.addmm,
        torch.bmm,
    ),
    *(F.conv2d, F.scaled_dot_product_attention, torch.searchsorted, F.embedding),
]


# Calls that no rule was built from: its rows are those that discovery finds.
FRESH = {
    torch.softmax: [((2, 9, 5, 3), {"dim": 2}), ((11, 4), {"dim": -2}), ((6, 5, 4), {"dim": 0})],
    torch.cumsum: [((2, 9, 5, 3), {"dim": -3})],
    torch.sum: [((3, 7, 5), {"dim": (0, -1)}), ((2, 9, 5, 3), {"dim": 1, "keepdim": True})],
    torch.transpose: [((3, 7, 5), {"dim0": -1, "dim1": 0}), ((2, 9, 5, 3), {"dim0": 1, "dim1": 2})],
    torch.unsqueeze: [((3, 7, 5), {"dim": -2}), ((9, 5), {"dim": 0})],
    torch.select: [((3, 7, 5), {"dim": -2, "index": 3}), ((9, 5), {"dim": 0, "index": -1})],
}


ALSO = (torch.cumsum, torch.unsqueeze, torch.select)  # like the others, and so with the long tests


@pytest.mark.parametrize(
    "op",
    [pytest.param(op, marks=[pytest.mark.long] * (op in ALSO)) for op in RULES],
    ids=lambda op: op.__name__,
)
def test_the_rule_of(op):
    rule = sw.synthesize(op)
    assert {str(clause) for clause in rule.clauses} == RULES[op]
    assert all(clause.reason for clause in rule.clauses)
    assert rule.evidence["held_out"] >= 10 and rule.evidence["refutations_tried"] >= 60
    for shape, kwargs in FRESH[op]:
        x = torch.rand(shape)
        found = {(str(row), row.shards) for row in sw.discover(op, x, **kwargs).rows}
        assert {(str(row), row.shards) for row in rule.rows(x, **kwargs)} == found


@pytest.mark.long
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.__name__)
def test_a_few_clauses_explain(op):
    rule = sw.synthesize(op)
    assert len(rule.clauses) <= 12
    assert rule.evidence["refutations_tried"] >= 60


@pytest.mark.long
def test_every_clause_has_a_reason():
    reasons = {str(c): c.reason for c in sw.synthesize(torch.sum).clauses}
    assert reasons["S(d) -> P(sum) when d in dim"] == "contracted: the results of the pieces add up"
    assert reasons["P(sum|avg) -> P(sum|avg)"] == "linear in argument 1 (self)"


def test_a_rule_answers_for_calls_of_the_function():
    rule = sw.synthesize(torch.softmax)
    assert [str(r) for r in rule.rows(torch.rand(4, 6, 8), dim=1)] == ["S(0) -> S(0)", "S(2) -> S(2)"]
    assert sw.Rule.from_yaml(rule.to_yaml()) == rule


def test_calls_that_change_nothing_do_not_make_the_rule():
    """Half of its calls are of vectors, which `t` leaves as they are."""
    rule = sw.synthesize(torch.t)
    shards = [str(r) for r in rule.rows(torch.rand(4, 6)) if "S" in str(r)]
    assert shards == ["S(0) -> S(1)", "S(1) -> S(0)"]


def test_examples_of_the_user_are_enough():
    """An operator that no database knows, with one example call."""

    @torch.library.custom_op("shardwise_test::weigh", mutates_args=())
    def weigh(x: torch.Tensor, dim: int) -> torch.Tensor:
        return x * x.sum(dim, keepdim=True)

    rule = sw.synthesize(torch.ops.shardwise_test.weigh.default, torch.rand(4, 6, 8), 1)
    assert [str(c) for c in rule.clauses] == [BATCH]
    # What the decorator gives is as good as what it registers.
    assert sw.synthesize(weigh, torch.rand(4, 6, 8), dim=1).clauses == rule.clauses
    assert [str(row) for row in sw.discover(weigh, torch.rand(4, 6), 1).rows] == ["S(0) -> S(0)"]


@pytest.mark.long
def test_a_rule_says_no_more_than_holds_where_no_condition_explains_all():
    """Which dims may be sharded depends on a number in a way no condition says."""

    @torch.library.custom_op("shardwise_test::strange", mutates_args=())
    def strange(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.cumsum(n * n % x.ndim)

    @strange.register_fake
    def _(x, n):
        return torch.empty_like(x)

    op = torch.ops.shardwise_test.strange.default
    examples = [([torch.rand(*range(3, 3 + ndim)), n], {}) for ndim in (2, 3, 4) for n in range(12)]
    study = studies(op, examples)[0]
    assert study.rule is not None and study.unexplained
    for args, _ in examples:
        found = {str(row) for row in sw.discover(op, *args).rows}
        assert {str(row) for row in study.rule.rows_of(Call.of(op, *args))} <= found


def test_an_operator_without_rows_has_no_rule_and_the_message_says_why():
    @torch.library.custom_op("shardwise_test::mixed", mutates_args=())
    def mixed(x: torch.Tensor) -> torch.Tensor:
        return x * x.abs().sum() + x.std()

    with pytest.raises(sw.UsageError, match=r"no row held in any of \d+ calls, except the replicated one"):
        sw.synthesize(mixed, torch.rand(4, 6))


def test_values_to_try_are_tried_beside_those_of_the_examples_and_no_others():
    study = studies(torch.softmax, [([torch.rand(4, 6, 8), 1], {})], values={"dim": [0, -1]})[0]
    assert {observed.call.args[1] for observed in study.observations} == {0, 1, -1}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"dmi": [0]},
            "torch.softmax has no argument 'dmi' whose values could be tried: it has dim, half_to_float",
        ),
        ({"dim": 0}, r"what to try for 'dim' is 0: give a list such as \[0, 1, -1\]"),
    ],
)
def test_values_of_nothing_are_refused(values, sentence):
    with pytest.raises(sw.UsageError, match=sentence):
        sw.Policy(values=values).synthesize(torch.softmax)


def test_the_report_on_cross():
    study = studies(torch.linalg.cross)[0]
    document = next(yaml.safe_load_all(yaml_report([study])))
    assert "S(d), S(d) -> S(d) when d != dim" in document["clauses"]
    assert {"P(sum|avg), R -> P(sum|avg)", "R, P(sum|avg) -> P(sum|avg)"} <= set(document["clauses"])
    assert document["analysis"]["dim_parameter"] == "dim"
    assert document["unconditional_rules"][0] == {"inputs": ["R", "R"], "output": ["R"]}
    assert document["conditional_rules"] == [
        {
            "inputs": ["S(d)", "S(d)"],
            "output": ["S(d)"],
            "condition": "d != dim",
            "justification": "batch dim: every index along it is computed by itself",
        }
    ]
    assert document["evidence"]["calls_held_out"] >= 30
    assert {"normal": "Normal values of both signs."} in document["sample_inputs_tested"]["generators"]


def test_the_names_of_the_harness():
    result = analyze_and_synthesize(
        op=torch.linalg.cross,
        op_name="torch.linalg.cross",
        input_ndims=[2, 2],
        output_ndims=[2],
        input_shape=(8, 3),
        device=torch.device("cpu"),
        world_size=2,
        dim_param="dim",
        dim_values=[1],
    )
    report = yaml.safe_load(result["formatted"])
    sections = [*("operator", "signature", "analysis", "sample_inputs_tested", "unconditional_rules")]
    sections += ["conditional_rules", "adversarial_generators"]
    assert [name for name in report if name in sections] == sections
    assert report["analysis"]["category"] == "cross-dim operation"
    assert set(report["sample_inputs_tested"]) == {
        "shapes",
        "dtypes",
        "world_size",
        "generators",
        "kwargs_swept",
    }
    always = [(rule["inputs"], rule["output"]) for rule in report["unconditional_rules"]]
    for inputs, output in (["R", "R"], ["R"]), (["R", "P(sum)"], ["P(sum)"]), (["P(sum)", "R"], ["P(sum)"]):
        assert (inputs, output) in always
    [rule] = report["conditional_rules"]
    assert (rule["inputs"], rule["output"], rule["condition"]) == (["S(d)", "S(d)"], ["S(d)"], "d != dim")
    assert "S(0), S(0) -> S(0)" in result["rows_by_dim"][1]
    found = discover_strategies(torch.softmax, input_ndims=[3], input_shape=(4, 6, 8), dim=1)
    assert found == [(("S(0)",), ("S(0)",)), (("S(2)",), ("S(2)",))]
