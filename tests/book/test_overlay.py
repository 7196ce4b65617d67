from dataclasses import replace

import torch

from shardwise.book._overlay import differences, learn_again, learn_variant_again
from shardwise.calls import Call
from shardwise.rules import Book, Entry, Rule, write

aten = torch.ops.aten
CALLS = [Call.of(aten.abs.default, torch.randn(4, 6)), Call.of(aten.abs.default, torch.randn(3))]


def ruled(op, *rows):
    clauses = ", ".join(f"{{rows: {row}}}" for row in rows)
    rule = Rule.from_yaml(f"op: {op}\nclauses: [{clauses}]")
    return Entry(op, "ruled", rule=rule, evidence={"calls": 1})


def test_an_entry_that_no_call_refutes_stands():
    known = ruled("aten.abs.default", "S(d) -> S(d)")
    assert learn_again(known.op, known, CALLS) is known


def test_an_entry_that_a_call_refutes_is_learned_anew():
    wrong = ruled("aten.abs.default", "S(d) -> S(d)", "P(sum) -> P(sum)")
    learned = learn_again(wrong.op, wrong, CALLS)
    assert "P(sum) -> P(sum)" not in map(str, learned.rule.clauses)
    assert "S(d) -> S(d)" in map(str, learned.rule.clauses)


def test_a_variant_is_tested_as_when_the_book_was_built():
    original = ruled("aten.abs.default", "S(d) -> S(d)")
    known = Entry("aten.abs_.default", "ruled", rule=original.rule, like=original.op, evidence={"calls": 1})
    learned = learn_variant_again(known.op, known, original, CALLS)
    assert learned.like == original.op
    alone = ruled("aten.abs_.default", "S(d) -> S(d)")
    assert learn_variant_again(alone.op, alone, original, CALLS) is alone


def test_a_verdict_stands_if_the_operator_still_gets_it():
    random = Entry("aten.rand_like.default", "random", "it draws numbers")
    calls = [Call.of(aten.rand_like.default, torch.rand(4))]
    assert learn_again(random.op, random, calls) is random
    now_random = ruled("aten.rand_like.default", "S(d) -> S(d)")
    assert learn_again(now_random.op, now_random, calls) is now_random  # nothing can be compared


def test_other_evidence_is_no_difference(tmp_path):
    known = ruled("aten.abs.default", "S(d) -> S(d)")
    write(tmp_path, [known], "2.13.0", {})
    assert differences(Book(tmp_path), [replace(known, evidence={"calls": 2})], [])[0] == []
    assert differences(Book(tmp_path), [replace(known, reason="SIGABRT")], [])[0] == []


def test_an_overlay_has_what_differs(tmp_path):
    kept, changed = ruled("aten.abs.default", "S(d) -> S(d)"), ruled("aten.neg.default", "S(d) -> S(d)")
    others = [ruled(f"aten.{name}.default", "S(d) -> S(d)") for name in ("cholesky", "sin")]
    write(tmp_path, [kept, changed, *others], "2.13.0", {})
    now = ruled("aten.neg.default", "P(sum) -> P(sum)")
    new = ruled("aten.erf.default", "S(d) -> S(d)")
    found, differs = differences(Book(tmp_path), [kept, now, new], ["aten.abs.default", "aten.sin.default"])
    assert [entry.op for entry in found] == ["aten.neg.default", "aten.erf.default"]
    assert differs == {"gone": ["aten.cholesky.default"], "untested": ["aten.sin.default"]}
