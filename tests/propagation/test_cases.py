import json

import pytest

from shardwise import propagate
from shardwise.errors import UsageError
from shardwise.propagation import level_of, mismatches, program_of, read_cases


@pytest.mark.parametrize(
    "sweeps", [pytest.param(1, marks=pytest.mark.long, id="one sweep"), pytest.param(None, id="fixed point")]
)
@pytest.mark.parametrize(("name", "count"), [("tests", 85), ("fuzz", 2400)])
def test_public_cases_match(data, name, count, sweeps):
    cases = list(read_cases(data / "shardy" / f"{name}.jsonl.gz"))
    wrong = {
        (case["id"], case["level"]): lines
        for case in cases
        if (lines := mismatches(case, propagate(program_of(case), level=level_of(case), sweeps=sweeps)))
    }
    assert len(cases) == count
    assert not wrong


CASE = {
    "mesh": "a=2",
    "args": [{"name": "x", "shape": [8], "sharding": "[{a}]"}],
    "ops": [
        {"op": "neg", "rule": "... -> ...", "operands": ["x"], "results": [{"name": "y", "shape": [8]}]},
        {"op": "constraint", "operands": ["y"], "results": [{"name": "z", "shape": [8], "sharding": "[{}]"}]},
        {"op": "barrier", "allowed": "backward", "operands": ["y"], "results": [{"name": "w", "shape": [8]}]},
    ],
    "results": [{"value": "y", "sharding": None}],
}


def test_a_program_may_be_written_by_hand():
    outcome = propagate(program_of(CASE))
    assert {name: str(s) for name, s in outcome.shardings.items()} == {
        "x": "[{a}]",
        "y": "[{a, ?}]",
        "z": "[{}]",
        "w": "[{?}]",
    }


def test_a_mismatch_tells_where_and_what():
    case = {**CASE, "results": [{"value": "y", "expected": {"dims": [[]], "open": [True]}}]}
    assert mismatches(case, propagate(program_of(case))) == ["return y: expected [{?}], got [{a, ?}]"]


@pytest.mark.parametrize("text", [json.dumps(CASE, indent=2), json.dumps([CASE]), json.dumps(CASE) + "\n\n"])
def test_a_file_holds_one_program_a_list_or_one_a_line(tmp_path, text):
    (tmp_path / "case.json").write_text(text)
    assert list(read_cases(tmp_path / "case.json")) == [CASE]


def test_wrong_files_are_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        list(read_cases(tmp_path / "absent.json"))
    (tmp_path / "bad.json").write_text(json.dumps(CASE) + "\nnot json\n")
    with pytest.raises(UsageError, match=r"bad\.json: line 2: this is not valid JSON"):
        list(read_cases(tmp_path / "bad.json"))
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(UsageError, match=r"list\.json: \[0\]: expected an object, found 1"):
        list(read_cases(tmp_path / "list.json"))
    with pytest.raises(UsageError, match="expected the field 'args', found 'mesh'"):
        program_of({"mesh": "a=2"})
    with pytest.raises(UsageError, match="unknown level 'eager'"):
        level_of({"level": "eager"})
