"""`shardwise doctor`."""

import json

MODELS = "examples/models.py"


def test_the_diagnosis_is_printed(shardwise):
    status, out, _ = shardwise("doctor", f"{MODELS}:build_mlp", "--mesh", "dp=2")
    assert status == 0 and "Left out or replaced" in out and "by the book" in out and "capturing" in out


def test_the_diagnosis_as_json(shardwise):
    _, out, _ = shardwise("doctor", f"{MODELS}:build_mlp", "--json")
    assert json.loads(out)["rules"]["book"] > 0
