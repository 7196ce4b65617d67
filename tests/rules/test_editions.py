import warnings
from dataclasses import replace

import pytest

from shardwise.rules import SHIPPED, Book, Entry, Rule, edition, editions, stands_on, write


def ruled(op, row):
    rule = Rule.from_yaml(f"op: {op}\nclauses: [{{rows: {row}}}]")
    return Entry(op, "ruled", rule=rule, evidence={"calls": 1})


@pytest.fixture
def shipped(tmp_path):
    """A book about torch 2.13.0, with an overlay for 2.15.0 in which one operator changed, one came and one is gone."""
    entries = [ruled("aten.abs.default", "S(d) -> S(d)"), ruled("aten.neg.default", "S(d) -> S(d)")]
    entries += [ruled("aten.cholesky.default", "S(d) -> S(d)"), ruled("aten.sin.default", "S(d) -> S(d)")]
    functions = {"torch.abs": ["aten.abs.default"], "torch.cholesky": ["aten.cholesky.default"]}
    write(tmp_path, entries, "2.13.0", functions)
    new = [ruled("aten.neg.default", "P(sum) -> P(sum)"), ruled("aten.erf.default", "S(d) -> S(d)")]
    differs = {"gone": ["aten.cholesky.default"], "untested": ["aten.sin.default"]}
    write(tmp_path / "2.15.0", new, "2.15.0", {"torch.erf": ["aten.erf.default"]}, differs)
    return tmp_path


def clauses(book, op):
    return [str(clause) for clause in book.entry(op).rule.clauses]


def test_an_edition_has_what_differs_and_the_rest_of_the_book(shipped):
    old, new = edition(shipped, "2.13.0"), edition(shipped, "2.15.0")
    assert set(new.verdicts) == {f"aten.{op}.default" for op in ("abs", "neg", "sin", "erf")}
    assert clauses(old, "aten.neg.default") == ["S(d) -> S(d)"]
    assert clauses(new, "aten.neg.default") == ["P(sum) -> P(sum)"]
    assert clauses(new, "aten.abs.default") == ["S(d) -> S(d)"]
    assert new.entry("aten.cholesky.default") is None is old.entry("aten.erf.default")
    assert new.overloads("abs") == ["aten.abs.default"] and new.overloads("cholesky") == []
    assert new.overloads("erf") == ["aten.erf.default"]


@pytest.mark.parametrize(
    ("running", "used"),
    [("2.13.1", "2.13.0"), ("2.14.1", "2.13.0"), ("2.15.1", "2.15.0")],
)
def test_a_torch_between_known_ones_has_the_rules_of_the_older(shipped, running, used):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert edition(shipped, running).torch == used


@pytest.mark.parametrize(("running", "used"), [("2.16.0", "2.15.0"), ("2.12.1", "2.13.0")])
def test_a_torch_beyond_known_ones_is_warned_about(shipped, running, used):
    with pytest.warns(UserWarning, match=rf"knows torch 2.13.0, 2.15.0, but this is torch {running}"):
        assert edition(shipped, running).torch == used


@pytest.mark.parametrize(
    ("op", "running", "versions"),
    [
        ("abs", "2.13.0", ["2.13.0", "2.15.0"]),
        ("neg", "2.13.0", ["2.13.0"]),
        ("abs", "2.14.1", ["2.13.0", "2.15.0"]),
        ("abs", "2.15.0", ["2.13.0", "2.15.0"]),
        ("neg", "2.14.1", ["2.13.0"]),
        ("neg", "2.15.0", ["2.15.0"]),
        ("sin", "2.15.0", ["2.13.0"]),
    ],
)
def test_an_entry_says_on_what_evidence_it_stands(shipped, op, running, versions):
    assert stands_on(shipped, f"aten.{op}.default", running) == versions


def test_an_overlay_of_the_shipped_book_is_used_for_its_torch_alone(tmp_path):
    differs = {"gone": ["aten.abs.default"], "untested": []}
    write(tmp_path, [ruled("aten.neg.default", "P(sum) -> P(sum)")], "2.14.0", {}, differs)
    own = edition(tmp_path, "2.14.0")
    assert own.entry("aten.abs.default") is None and clauses(own, "aten.neg.default") == ["P(sum) -> P(sum)"]
    assert own.entry("aten.mm.default") == Book(SHIPPED).entry("aten.mm.default")
    with pytest.warns(UserWarning, match=r"knows torch 2.14.0, but this is torch 2.13.0"):
        assert edition(tmp_path, "2.13.0").torch == "2.14.0"


def test_an_edition_says_nothing_of_operators_that_the_running_torch_lacks(shipped):
    whole = edition(shipped, "2.15.0")
    less = whole.without(["aten.abs.default", "aten.neg.default"])  # one of the base, one that differs
    assert whole.verdicts.keys() - less.verdicts.keys() == {"aten.abs.default", "aten.neg.default"}
    for op in whole.verdicts:
        assert less.entry(op) == (whole.entry(op) if op in less.verdicts else None)
    assert all(op in less.verdicts for ops in less.functions.values() for op in ops)


def test_the_shipped_book_has_its_editions():
    known = editions(SHIPPED)
    assert sorted(known) == ["2.11.0", "2.13.0", "2.15.0"]
    assert known["2.13.0"].entry("aten.cholesky.default").rule is not None
    assert known["2.15.0"].entry("aten.cholesky.default") is None
    assert known["2.13.0"].entry("aten.linalg_matrix_sqrth.default") is None
    assert known["2.15.0"].entry("aten.linalg_matrix_sqrth.default").rule is not None
    assert known["2.11.0"].entry("aten._foreach_mm.default") is None
    assert stands_on(SHIPPED, "aten.mm.default", "2.14.1") == ["2.11.0", "2.13.0", "2.15.0"]


@pytest.mark.parametrize("version", ["2.11.0", "2.15.0"])
def test_what_differs_is_about_operators_not_evidence(version):
    known = editions(SHIPPED)
    shared = known[version].own_verdicts.keys() & known["2.13.0"].verdicts.keys()
    for op in shared:
        old, new = (known[v].entry(op) for v in ("2.13.0", version))
        assert replace(old, evidence={}, reason="") != replace(new, evidence={}, reason="")
