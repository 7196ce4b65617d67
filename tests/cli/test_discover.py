import json
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-c", "from shardwise.cli import main; main()"]


def run(*arguments):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120)


def test_discover_prints_one_json_document():
    result = run("discover", "torch.softmax", "--shape", "4,6,8", "--kw", "dim=1", "--json")
    document = json.loads(result.stdout)
    assert document["op"] == "torch.softmax"
    assert document["verdict"] == "rows"
    assert [(r["inputs"], r["outputs"], r["shards"]) for r in document["rows"]] == [
        (["S(0)"], ["S(0)"], "any"),
        (["S(2)"], ["S(2)"], "any"),
    ]
    assert document["experiments"] > 50


@pytest.mark.parametrize(
    ("call", "option", "row"),
    [
        (["torch.Tensor.to", "--shape=4,6", "--arg=torch.float16"], "--narrowing", ["P(sum)", "P(sum)"]),
        (["torch.prod", "--shape=8,6", "--arg=0"], "--product", ["S(0)", "P(product)"]),
    ],
)
def test_options_widen_what_is_claimed(call, option, row):
    """Rows that are not claimed without the option."""
    rows = json.loads(run("discover", *call, option, "--json").stdout)["rows"]
    assert row in [r["inputs"] + r["outputs"] for r in rows]


def test_a_native_crash_is_a_verdict():
    result = run("discover", "torch.linalg.ldl_solve", "--json")
    assert json.loads(result.stdout)["verdict"] == "crashed"


def test_check_says_holds_or_refuted():
    refuted = run("check", "torch.abs", "P(sum) -> P(sum)", "--shape", "4,6")
    assert refuted.returncode == 1
    assert "refuted" in refuted.stdout and "the ranks have" in refuted.stdout
    holds = run("check", "torch.mm", "S(1), S(0) -> P(sum)", "--shape", "4,6", "--shape", "6,8")
    assert holds.returncode == 0 and "holds" in holds.stdout


def test_lists_and_dtypes_can_be_given():
    result = run("discover", "torch.cat", "--shape", "4,6:int64;4,6:int64", "--kw", "dim=0", "--json")
    rows = [r["inputs"] for r in json.loads(result.stdout)["rows"]]
    assert ["S(1)", "S(1)"] in rows and ["P(avg)", "P(avg)"] not in rows


def test_a_sweep_tries_the_values_that_are_given():
    options = ("--shape", "4,6,8", "--kw", "dim=1", "--sweep", "dim=0,-1", "--json")
    (document,) = json.loads(run("discover", "torch.softmax", *options).stdout)
    assert document["sample_inputs_tested"]["kwargs_swept"]["dim"] == ["-1", "0", "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["discover", "torch.sofmax", "--shape", "4"], "did you mean 'softmax'?"),
        (["discover", "torch.mm", "--shape", "4,x"], "is not a shape"),
        (["discover", "torch.mm", "--shape", "4,6:flaot"], "names no dtype"),
        (["discover", "torch.softmax", "--shape", "4,6", "--kw", "dim"], "has no '='"),
        (["discover", "torch.mm", "--shape", "4,6", "--shape", "4,6"], "raises on the whole input"),
        (["check", "torch.abs", "P(sum)", "--shape", "4,6"], "has no '->'"),
        (["discover", "no.such:function", "--shape", "4"], "cannot import"),
        (["discover", "nothere::op", "--shape", "4"], "unknown op"),
        (["discover", "torch.sum", "--sweep", "--kw=dim=1"], "--kw is part of an example call"),
        (
            ["discover", "torch.softmax", "--sweep", "dmi=0,1"],
            "has no argument 'dmi' whose values could be tried",
        ),
    ],
)
def test_mistakes_are_one_sentence(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr and len(result.stderr.strip().splitlines()) == 1
