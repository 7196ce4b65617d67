"""`shardwise book` as it is typed."""

import json


def test_showing_an_operator_prints_its_rule_with_the_evidence(shardwise):
    code, out, _err = shardwise("book", "show", "softmax")
    assert code == 0
    assert "op: aten._softmax.default" in out
    assert "rows: S(d) -> S(d) when d != dim" in out
    assert "experiments:" in out


def test_showing_as_json_is_one_document(shardwise):
    code, out, _err = shardwise("book", "show", "aten.mm.default", "--json")
    assert code == 0
    assert [entry["op"] for entry in json.loads(out)] == ["aten.mm.default"]


def test_an_unknown_operator_is_one_sentence(shardwise):
    code, _out, err = shardwise("book", "show", "no_such_op")
    assert code == 2
    assert err.startswith("shardwise: the book has no operator 'no_such_op'")


def test_building_prints_how_many_operators_got_each_verdict(shardwise, tmp_path):
    code, out, _err = shardwise(
        "book", "build", "--out", str(tmp_path), "--op", "nn_functional_relu", "--json"
    )
    assert code == 0
    counts = json.loads(out)["counts"]
    assert counts["ruled"] >= 3 and set(counts) >= {"crashed", "cannot run", "rows only"}
    assert (tmp_path / "index.yaml").exists()


def test_a_pattern_that_names_nothing_is_refused(shardwise, tmp_path):
    code, _out, err = shardwise("book", "build", "--out", str(tmp_path), "--op", "nothing_like_it")
    assert code == 2
    assert "no OpInfo or model is called 'nothing_like_it'" in err


def test_a_folder_with_other_files_is_left_alone(shardwise, tmp_path):
    (tmp_path / "settings.yaml").write_text("mine: true\n")
    code, _out, err = shardwise("book", "build", "--out", str(tmp_path), "--op", "nn_functional_relu")
    assert code == 2 and "has files of its own (settings.yaml)" in err
    assert [path.name for path in tmp_path.iterdir()] == ["settings.yaml"]
