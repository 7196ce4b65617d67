"""`shardwise plan` as a user runs it."""

import json

import pytest


@pytest.fixture(autouse=True)
def model_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.py").write_text(
        "import torch\n\n\ndef build():\n    return torch.nn.Linear(64, 64), (torch.rand(32, 64),), {}\n"
    )


def test_a_plan_is_summed_up_and_written(shardwise, tmp_path):
    words = ("plan", "model.py:build", "--mesh", "dp=2,tp=2", "--cluster", "laptop", "--out", "plan.json")
    status, said, _ = shardwise(*words, "--explain", "weight")
    assert status == 0
    assert "Linear on mesh dp=2,tp=2 of laptop" in said and "lower bound" in said and "weight float32" in said
    assert max(map(len, said.split("\n\nweight")[0].splitlines())) <= 80
    assert json.loads((tmp_path / "plan.json").read_text())["mesh"] == "dp=2,tp=2"


def test_shardings_are_propagated_and_followed(shardwise):
    given = ["--sharding", "input=[{dp}, {}]", "--no-confirm", "--cluster", "laptop"]
    status, said, err = shardwise("plan", "model.py:build", "--mesh", "dp=2", *given)
    assert status == 0, err
    assert "propagated from" in said and "input  [{dp}, {}]" in said
    status, _, err = shardwise("plan", "model.py:build", "--mesh", "dp=2", "--sharding", "input")
    assert status == 2 and "is not of the form" in err


def test_meshes_of_some_devices_are_ranked(shardwise):
    status, said, _ = shardwise("plan", "model.py:build", "--devices", "4", "--cluster", "laptop", "--json")
    assert status == 0
    document = json.loads(said)
    candidates = document["options"]["candidates"]
    assert {each["mesh"] for each in candidates} == {"dp=4", "dp=2,tp=2"}
    known = [each["seconds"] for each in candidates if each["seconds"] is not None]
    assert known and document["cost"]["seconds"] == pytest.approx(min(known))


def test_stages_are_among_the_meshes_of_some_devices(shardwise, tmp_path):
    (tmp_path / "deep.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef build():\n"
        "    layers = (nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4))\n"
        "    return nn.Sequential(*layers), (torch.rand(4, 512),), {}\n\n\n"
        "def loss(out):\n    return out.square().mean()\n"
    )
    words = ["plan", "deep.py:build", "--loss-fn", "deep.py:loss", "--devices", "2", "--micro-batches", "4"]
    words += ["--cluster", "laptop", "--no-confirm", "--explain", "pp", "--out", "plan.json"]
    status, said, err = shardwise(*words)
    assert status == 0, err
    assert "meshes" in said and "pp=2" in said and "dp=2" in said and "pp: " in said
    assert "written to plan.json" in said and (tmp_path / "plan.json").exists()


def test_time_over_memory_is_printed_and_written(shardwise, tmp_path):
    words = ("plan", "model.py:build", "--mesh", "dp=2", "--cluster", "laptop", "--no-confirm")
    options = ("--global-batch", "8", "--micro-batches", "4", "--memory", "60KB")
    status, said, err = shardwise(*words, *options, "--front", "--page", "front.html")
    assert status == 0, err
    assert "time of a step over memory" in said and "of 4 micro-batches" in said
    assert "micro-batches" in (tmp_path / "front.html").read_text()
    status, _, err = shardwise(*words, "--page", "front.html")
    assert status == 2 and "give --front, too" in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("model.py:build",), "give either --mesh"),
        (("model.py:build", "--mesh", "dp=2", "--pin", "x"), "is not of the form"),
        (("model.py:build", "--mesh", "dp"), "is not of the form 'dp=2,tp=4'"),
        (("model.py:build", "--mesh", "dp=2", "--cluster", "abacus"), "unknown cluster 'abacus'"),
        (("model.py:build", "--mesh", "dp=2", "--optimizer", "magic"), "unknown optimizer 'magic'"),
        (("graph.json", "--mesh", "dp=2"), "graph.json cannot be read"),
        (("model.py:build", "--devices", "0"), "devices is 0: it must be at least 1"),
        (("graph.json", "--mesh", "dp=2", "--global-batch", "8"), "--global-batch cannot change graph.json"),
    ],
)
def test_mistakes_are_answered_with_one_sentence(shardwise, words, complaint):
    status, out, err = shardwise("plan", *words)
    assert (status, out) == (2, "")
    assert complaint in err and err.count("\n") == 1
