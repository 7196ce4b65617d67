"""`shardwise book` as it is typed."""

import json

import pytest

from shardwise.cli import main


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["shardwise", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


def test_showing_an_operator_prints_its_rule_with_the_evidence(monkeypatch, capsys):
    code, printed = run(monkeypatch, capsys, "book", "show", "softmax")
    assert code == 0
    assert "op: aten._softmax.default" in printed.out
    assert "rows: S(d) -> S(d) when d != dim" in printed.out
    assert "experiments:" in printed.out


def test_showing_as_json_is_one_document(monkeypatch, capsys):
    code, printed = run(monkeypatch, capsys, "book", "show", "aten.mm.default", "--json")
    assert code == 0
    assert [entry["op"] for entry in json.loads(printed.out)] == ["aten.mm.default"]


def test_an_unknown_operator_is_one_sentence(monkeypatch, capsys):
    code, printed = run(monkeypatch, capsys, "book", "show", "no_such_op")
    assert code == 2
    assert printed.err.startswith("shardwise: the book has no operator 'no_such_op'")


def test_building_prints_how_many_operators_got_each_verdict(monkeypatch, capsys, tmp_path):
    code, printed = run(
        monkeypatch, capsys, "book", "build", "--out", str(tmp_path), "--op", "nn_functional_relu", "--json"
    )
    assert code == 0
    counts = json.loads(printed.out)["counts"]
    assert counts["ruled"] >= 3 and set(counts) >= {"crashed", "cannot run", "rows only"}
    assert (tmp_path / "index.yaml").exists()


def test_a_pattern_that_names_nothing_is_refused(monkeypatch, capsys, tmp_path):
    code, printed = run(
        monkeypatch, capsys, "book", "build", "--out", str(tmp_path), "--op", "nothing_like_it"
    )
    assert code == 2
    assert "no OpInfo or model is called 'nothing_like_it'" in printed.err
