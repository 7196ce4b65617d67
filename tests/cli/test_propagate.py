import json
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "propagate" / "mlp.json"


def test_shardings_of_every_value_are_printed(shardwise):
    status, out, err = shardwise("propagate", EXAMPLE)
    assert (status, err) == (0, "")
    assert "down      [{tp, ?}, {?}]" in out
    assert "fixed point reached (updates: 5, sweeps: 7)" in out
    assert "along factor" not in out


def test_the_trace_tells_op_axis_dim_factor_and_source(shardwise):
    _, out, _ = shardwise("propagate", EXAMPLE, "--trace")
    assert "h = matmul(x, up)\n    h dim 0: {} -> {dp}, along factor m from x" in out


def test_json_is_one_document_and_nothing_else(shardwise):
    _, out, _ = shardwise("propagate", EXAMPLE, "--json", "--trace")
    [document] = json.loads(out)
    assert document["shardings"]["down"] == {"dims": [["tp"], []], "open": [True, True]}
    assert document["level"] == "user-priority"
    assert document["mismatches"] == []
    first = document["trace"][0]
    assert first["op"] == "h = matmul(x, up)"
    assert first["moved"][0] == {
        "value": "h",
        "dim": 0,
        "before": [],
        "after": ["dp"],
        "factor": "m",
        "sources": ["x"],
    }


def test_a_level_and_a_case_may_be_chosen(shardwise, tmp_path):
    case = json.loads(EXAMPLE.read_text())
    (tmp_path / "two.jsonl").write_text(
        "\n".join(json.dumps({**case, "id": name}) for name in ("one", "two"))
    )
    _, out, _ = shardwise("propagate", tmp_path / "two.jsonl", "--case", "two", "--level", "basic", "--json")
    assert [(d["id"], d["level"]) for d in json.loads(out)] == [("two", "basic")]


def test_differences_from_the_expected_are_listed(shardwise, tmp_path):
    case = json.loads(EXAMPLE.read_text())
    case["results"][0]["expected"] = None
    (tmp_path / "case.json").write_text(json.dumps(case))
    _, out, _ = shardwise("propagate", tmp_path / "case.json")
    assert "not as expected: return y: expected [{?}, {?}], got [{dp, ?}, {?}]" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([EXAMPLE, "--level", "eager"], "unknown level 'eager'"),
        ([EXAMPLE, "--case", "absent"], "contains no program with id 'absent'"),
        (["absent.json"], "absent.json cannot be read"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(shardwise, arguments, message):
    status, out, err = shardwise("propagate", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


MODELS = EXAMPLE.parents[1] / "models.py"


def test_a_model_is_captured_and_propagated_through(shardwise):
    given = ["--mesh", "dp=2,tp=2", "--sharding", "x=[{dp}, {}]", "--sharding", "up.weight=[{tp}, {}]"]
    status, out, err = shardwise("propagate", f"{MODELS}:build_mlp", *given)
    assert status == 0, err
    assert "down.weight" in out and "[{?}, {tp, ?}]" in out
    assert "fixed point reached" in out
    _, out, _ = shardwise("propagate", f"{MODELS}:build_mlp", *given, "--module", "down", "--inference")
    assert "-> i j (forward in down)" in out and "backward" not in out
    _, out, _ = shardwise("propagate", f"{MODELS}:build_mlp", *given, "--json")
    assert json.loads(out)["shardings"]["down.weight"]["dims"] == [[], ["tp"]]


def test_a_captured_graph_is_propagated_through(shardwise, tmp_path):
    shardwise("capture", f"{MODELS}:build_mlp", "--out", tmp_path / "mlp.json")
    status, out, _ = shardwise(
        "propagate", tmp_path / "mlp.json", "--mesh", "dp=2", "--sharding", "x=[{dp}, {}]"
    )
    assert status == 0
    assert "[{dp}, {}]" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([EXAMPLE, "--mesh", "dp=2"], "has programs with their meshes and shardings: give no others"),
        ([f"{MODELS}:build_mlp"], "propagate needs a mesh"),
        ([f"{MODELS}:build_mlp", "--mesh", "dp=2", "--sharding", "x"], "is not of the form"),
    ],
)
def test_what_does_not_go_together_is_refused(shardwise, arguments, message):
    status, _, err = shardwise("propagate", *arguments)
    assert (status, message in err) == (2, True)
