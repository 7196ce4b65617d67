"""`shardwise plan` as a user runs it."""

import json

import pytest

from shardwise.cli import main


@pytest.fixture(autouse=True)
def model_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.py").write_text(
        "import torch\n\n\ndef build():\n    return torch.nn.Linear(64, 64), (torch.rand(32, 64),), {}\n"
    )


def shardwise(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["shardwise", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_plan_is_summed_up_and_written(monkeypatch, capsys, tmp_path):
    words = ("plan", "model.py:build", "--mesh", "dp=2,tp=2", "--cluster", "laptop", "--out", "plan.json")
    assert shardwise(monkeypatch, *words, "--explain", "weight") == 0
    said = capsys.readouterr().out
    assert "Linear on mesh dp=2,tp=2 of laptop" in said and "lower bound" in said and "weight float32" in said
    assert max(map(len, said.split("\n\nweight")[0].splitlines())) <= 80
    assert json.loads((tmp_path / "plan.json").read_text())["mesh"] == "dp=2,tp=2"


def test_meshes_of_some_devices_are_ranked(monkeypatch, capsys):
    assert (
        shardwise(monkeypatch, "plan", "model.py:build", "--devices", "4", "--cluster", "laptop", "--json")
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert set(document["meshes"]) == {"dp=4", "dp=2,tp=2"}
    assert document["cost"]["seconds"] == min(document["meshes"].values())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("model.py:build",), "give either --mesh"),
        (("model.py:build", "--mesh", "dp=2", "--pin", "x"), "is not of the form"),
        (("model.py:build", "--mesh", "dp"), "is not of the form 'dp=2,tp=4'"),
        (("model.py:build", "--mesh", "dp=2", "--cluster", "abacus"), "unknown cluster 'abacus'"),
        (("model.py:build", "--mesh", "dp=2", "--optimizer", "magic"), "unknown optimizer 'magic'"),
        (("graph.json", "--mesh", "dp=2"), "graph.json cannot be read"),
    ],
)
def test_mistakes_are_answered_with_one_sentence(monkeypatch, capsys, words, complaint):
    assert shardwise(monkeypatch, "plan", *words) == 2
    said = capsys.readouterr()
    assert complaint in said.err and said.out == "" and said.err.count("\n") == 1
