"""Calls made to refute a rule."""

import itertools

import pytest
import torch

from shardwise.calls import Call
from shardwise.rules import Rule
from shardwise.synthesis import Design, contradicted, random_calls, studies, triples
from shardwise.synthesis._refutation import unusual_calls

LOSS = torch.ops.aten.soft_margin_loss.default
CALLS = [Call.of(LOSS, torch.randn(*shape), torch.randn(*shape).sign(), 2) for shape in ((6,), (4, 6))]
SCATTER = torch.ops.aten.select_scatter.default
NORM = torch.ops.aten.linalg_vector_norm.default


def rule(op, *clauses):
    return Rule.from_document({"op": str(op), "clauses": [{"rows": clause} for clause in clauses]})


def wrong_clauses(found, calls, count=60):
    design = Design(calls)
    made = itertools.chain(triples(design, count), random_calls(design, count, seed=0))
    return {str(c) for call in made for c in contradicted(found, call)}


def test_a_clause_that_forgets_a_choice_is_refuted_although_no_known_call_makes_it():
    right = "S(d), S(d) -> P(sum) when reduction == 2 and ndim(0) == ndim(1) and size(0, d) == size(1, d)"
    wrong = "S(d), S(d) -> P(sum) when reduction > 0"
    assert all(not contradicted(rule(LOSS, wrong), call) for call in CALLS)
    assert wrong_clauses(rule(LOSS, right, wrong), CALLS) == {wrong}


def test_a_clause_that_rests_on_a_dim_of_size_1_is_refuted_where_that_dim_is_another():
    calls = [Call.of(SCATTER, torch.rand(4, 1), torch.rand(4), 1, 0)]
    wrong, right = "R, P(sum) -> P(sum) when size(0, -1) == 1", "R, P(sum) -> P(sum) when size(0, dim) == 1"
    assert wrong_clauses(rule(SCATTER, wrong, right), calls) == {wrong}


def test_a_condition_on_a_number_in_the_place_of_a_flag_is_refuted():
    """The order and keepdim vary together in the known calls, so that either explains them."""
    x = torch.randn(2, 3, 4)
    calls = [Call.of(NORM, x, order, [0], order not in (0, -1)) for order in (0, -1, 1, 2)]
    wrong = "S(d) -> S(d) when d not in dim and ord != 0 and ord != -1"
    right = "S(d) -> S(d) when d not in dim and keepdim"
    assert all(not contradicted(rule(NORM, wrong, right), call) for call in calls)
    assert wrong_clauses(rule(NORM, wrong, right), calls) == {wrong}


def test_calls_made_at_random_run_differ_and_are_the_same_every_time():
    made = [list(random_calls(Design(CALLS), 20, seed=0)) for _ in range(2)]
    assert [c.args[2:] for c in made[0]] == [c.args[2:] for c in made[1]]
    assert {c.args[2] for c in made[0]} == {0, 1, 2}
    assert all(torch.is_tensor(c.run(c.tensors)[0]) for c in made[0])


@pytest.mark.long
def test_a_rule_that_is_found_survived_calls_made_to_refute_it():
    study = studies(torch.add)[0]
    assert study.rule is not None and study.refutations_tried >= 100
    clauses = set(map(str, study.rule.clauses))
    assert "R, P(max|min) -> P(max|min) when alpha > 0" in clauses
    assert "R, P(max|min) -> P(max|min)" not in clauses


POOL = torch.ops.aten.fractional_max_pool2d.default
GRADIENT = torch.ops.aten.softplus_backward.default


def unusual_and_wrong(found, calls):
    design = Design(calls)
    made = itertools.chain(unusual_calls(design), random_calls(design, 60, seed=0))
    return {str(c) for call in made for c in contradicted(found, call)}


def test_a_clause_that_rests_on_a_dim_of_size_1_is_refuted_by_a_kernel_that_takes_others():
    calls = [Call.of(POOL, torch.rand(3, 9, 9), [3, 3], [2, 2], torch.rand(1, 3, 2))]
    wrong = "S(d), S(d) -> S(d), S(d) when d < ndim(0)-2 for nonempty shards"
    right = "S(0), S(1) -> S(0), S(0) when ndim(0) == 3 and size(1, 0) == 1 for nonempty shards"
    assert all(not contradicted(rule(POOL, wrong, right), call) for call in calls)
    assert unusual_and_wrong(rule(POOL, wrong, right), calls) == {wrong}


def test_a_clause_for_operands_of_one_shape_is_refuted_where_they_broadcast():
    calls = [
        Call.of(GRADIENT, torch.rand(*shape), torch.rand(*shape), 3, 0.2) for shape in ((5, 5), (5, 5, 5))
    ]
    wrong = "S(d), S(d+ndim(0)-ndim(1)) -> S(d+ndim(0)-ndim(1))"
    assert all(not contradicted(rule(GRADIENT, wrong), call) for call in calls)
    assert unusual_and_wrong(rule(GRADIENT, wrong), calls) == {wrong}
