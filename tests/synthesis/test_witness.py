"""A condition is kept only with two calls that differ in it alone."""

import torch

from shardwise.experiments import check
from shardwise.synthesis import studies


def told_apart(witness):
    """The arguments in which the calls of a witness differ."""
    holds, fails = meant(witness.holds.call), meant(witness.fails.call)
    return {name for name in holds if not _same(holds[name], fails[name])}


def meant(call):
    """The arguments of a norm, with the dims that it means: all of them where none is given."""
    ndim, dims = call.arguments["self"].dim(), call.arguments["dim"]
    return {**call.arguments, "dim": [d % ndim for d in (range(ndim) if dims is None else dims)]}


def _same(first, second):
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.shape == second.shape
    return first == second


def test_every_condition_of_a_rule_has_a_witness_that_can_be_replayed():
    study = studies(torch.linalg.vector_norm)[0]
    conditions = {(str(c), text) for c in study.rule.clauses for text in c.when}
    assert conditions == {(str(w.clause), w.condition) for w in study.witnesses}
    for witness in study.witnesses:
        for tried, expected in ((witness.holds, True), (witness.fails, False)):
            call = tried.call
            assert bool(check(call.op, tried.row, *call.args, **call.kwargs)) is expected


def test_the_calls_of_a_witness_differ_in_the_condition_alone():
    study = studies(torch.linalg.vector_norm)[0]
    for witness in study.witnesses:
        names = {name for name in witness.holds.call.arguments if name in witness.condition.split()}
        assert told_apart(witness) <= names


def test_the_flag_is_found_although_numbers_would_explain_the_known_calls():
    rule = studies(torch.linalg.vector_norm)[0].rule
    assert "S(d) -> S(d) when d not in dim and keepdim" in set(map(str, rule.clauses))


def test_witnesses_are_part_of_the_evidence():
    evidence = studies(torch.linalg.vector_norm)[0].rule.evidence["witnesses"]
    assert {"clause", "condition", "holds", "fails"} == set(evidence[0])
    assert all("self" in w["holds"]["arguments"] and w["fails"]["rows"] for w in evidence)
