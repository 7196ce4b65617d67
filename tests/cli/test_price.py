"""`shardwise price` as a user runs it."""

import json

import pytest


@pytest.fixture(autouse=True)
def model_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(
        "import torch\n\n\ndef build():\n    return torch.nn.Linear(64, 64), (torch.rand(32, 64),), {}\n"
    )


def test_a_price_is_printed_by_parts(shardwise):
    status, said, _ = shardwise("price", "model.py:build", "--layout", "fsdp=2,tp=2", "--cluster", "laptop")
    assert status == 0
    assert "a step" in said and "memory: " in said and "gather parameters" in said


def test_a_price_is_a_document(shardwise):
    words = ("--layout", "dp=4,micro_batch=2", "--mesh", "x=4", "--json")
    status, said, _ = shardwise("price", "model.py:build", *words)
    assert status == 0
    document = json.loads(said)
    assert (document["mesh"], document["passes"]) == ("dp=4", 4)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--layout", "ddp=2"), "unknown word 'ddp'"),
        (("--layout", "dp=5"), "a batch of 32 cannot be cut"),
        (("--layout", "dp=2", "--mesh", "dp=4"), "does not fit layout dp=2"),
    ],
)
def test_mistakes_are_answered_with_one_sentence(shardwise, words, complaint):
    status, out, err = shardwise("price", "model.py:build", *words)
    assert (status, out) == (2, "")
    assert complaint in err and err.count("\n") == 1
