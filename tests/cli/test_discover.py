import json
import subprocess
import sys

import pytest

from shardwise.experiments import generators
from tests.passages import GENERATORS


def test_discover_prints_one_json_document(shardwise):
    _, printed, _ = shardwise("discover", "torch.softmax", "--shape", "4,6,8", "--kw", "dim=1", "--json")
    document = json.loads(printed)
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
        (["torch.relu", "--shape=8,6"], "--strided", ["S(1, sf=*)", "S(1, sf=*)"]),
    ],
)
def test_options_widen_what_is_claimed(shardwise, call, option, row):
    """Rows that are not claimed without the option."""
    rows = json.loads(shardwise("discover", *call, option, "--json")[1])["rows"]
    assert row in [r["inputs"] + r["outputs"] for r in rows]


def test_a_native_crash_is_a_verdict(shardwise):
    _, printed, _ = shardwise("discover", "torch.linalg.ldl_solve", "--json")
    assert json.loads(printed)["verdict"] == "crashed"


def test_check_says_holds_or_refuted(shardwise):
    status, printed, _ = shardwise("check", "torch.abs", "P(sum) -> P(sum)", "--shape", "4,6")
    assert status == 1 and "refuted" in printed and "the ranks have" in printed
    claim = ("torch.mm", "S(1), S(0) -> P(sum)", "--shape", "4,6", "--shape", "6,8")
    status, printed, _ = shardwise("check", *claim)
    assert status == 0 and "holds" in printed


def test_lists_and_dtypes_can_be_given(shardwise):
    call = ("torch.cat", "--shape", "4,6:int64;4,6:int64", "--kw", "dim=0")
    _, printed, _ = shardwise("discover", *call, "--json")
    rows = [r["inputs"] for r in json.loads(printed)["rows"]]
    assert ["S(1)", "S(1)"] in rows and ["P(avg)", "P(avg)"] not in rows


def test_a_sweep_tries_the_values_that_are_given(shardwise):
    options = ("--shape", "4,6,8", "--kw", "dim=1", "--sweep", "dim=0,-1", "--json")
    (document,) = json.loads(shardwise("discover", "torch.softmax", *options)[1])
    assert document["sample_inputs_tested"]["kwargs_swept"]["dim"] == [-1, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["discover", "torch.sofmax", "--shape", "4"], "did you mean 'softmax'?"),
        (["discover", "torch.mm", "--shape", "4,x"], "is not a shape"),
        (["discover", "torch.mm", "--shape", "4,6:flaot"], "has an unknown dtype"),
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
def test_mistakes_are_one_sentence(shardwise, arguments, message):
    status, _, complaint = shardwise(*arguments)
    assert status == 2 and message in complaint and complaint.count("\n") == 1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a file of the user's operators, which imports its neighbour, and a package."""
    (tmp_path / "neighbour.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "my_ops.py").write_text(
        "import torch\nfrom neighbour import FACTOR\n\n"
        "@torch.library.custom_op('users::centre', mutates_args=())\n"
        "def centre(x: torch.Tensor) -> torch.Tensor:\n"
        "    return FACTOR * (x - x.mean(0, keepdim=True))\n\n"
        "def plain(x):\n    return x.cumsum(1)\n\nNUMBER = 3\n"
    )
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "ops.py").write_text("def other(x):\n    return x.flip(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)) or name == "package":
            del sys.modules[name]


@pytest.mark.parametrize(
    ("op", "row"),
    [
        ("my_ops.py:centre", "S(1) -> S(1)"),
        ("./my_ops.py:plain", "S(0) -> S(0)"),
        ("my_ops:plain", "S(0) -> S(0)"),
        ("package.ops:other", "S(1) -> S(1)"),
        ("package/ops.py:other", "S(1) -> S(1)"),
    ],
)
def test_operators_of_a_file_and_of_a_module_of_the_current_folder(folder, shardwise, op, row):
    for claim, status in ((row, 0), (row.replace("1", "2").replace("0", "1").replace("2", "0"), 1)):
        assert shardwise("check", op, claim, "--shape", "4,6")[0] == status, claim
    status, printed, _ = shardwise("discover", op, "--shape", "4,6", "--json")
    rows = [f"{found['inputs'][0]} -> {found['outputs'][0]}" for found in json.loads(printed)["rows"]]
    assert status == 0 and [text for text in rows if text.startswith("S")] == [row]


def test_the_installed_command_finds_modules_of_the_current_folder(folder):
    """Whose own folder, not the current one, is where Python looks first."""
    python = [sys.executable, "-P", "-c", "from shardwise.cli import main; main()"]
    command = ["discover", "my_ops:centre", "--shape=4,6", "--sweep", "--json"]
    result = subprocess.run([*python, *command], capture_output=True, text=True, timeout=240, cwd=folder)
    assert result.returncode == 0, result.stderr
    (document,) = json.loads(result.stdout)
    assert document["overload"] == "users.centre.default" and document["clauses"]


@pytest.mark.parametrize(
    ("op", "sentence"),
    [
        ("my_ops.py:missing", "my_ops.py has no function missing"),
        ("my_ops.py:NUMBER", "my_ops.py has no function NUMBER"),
        ("other.py:centre", "there is no file other.py: give the path of the file that has centre"),
        ("nowhere:centre", "cannot import 'nowhere' for 'nowhere:centre'"),
        ("my_ops.py:", "'my_ops.py:' is not the name of a function: write it as ops.py:my_operator"),
    ],
)
def test_a_function_that_is_not_there_is_one_sentence(folder, shardwise, op, sentence):
    for command in (["discover", op], ["check", op, "R -> R"]):
        status, _, complaint = shardwise(*command, "--shape", "4,6")
        assert status == 2 and sentence in complaint and complaint.count("\n") == 1


def test_the_command_loads_generators_from_a_file(tmp_path, shardwise):
    (tmp_path / "mine.py").write_text(GENERATORS)
    options = ("--shape=8,3", "--shape=8,3", "--kw=dim=1", "--ranks=2,5", f"--generators={tmp_path}/mine.py")
    found = json.loads(shardwise("discover", "torch.cross", *options, "--json")[1])
    assert ["S(0)", "S(0)"] in [row["inputs"] for row in found["rows"]]
    assert "gen parallel scaled" in {g.name for g in generators(("torch.cross",))}
    (tmp_path / "empty.py").write_text("x = 1")
    status, _, said = shardwise("check", "torch.relu", "S(0) -> S(0)", f"--generators={tmp_path}/empty.py")
    assert status == 2 and "has no generators: write def name(shape, dtype, device, input_idx=0)" in said
