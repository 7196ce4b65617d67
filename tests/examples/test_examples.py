"""Every example runs as its first lines say, and shows what it is about."""

import re

import pytest


@pytest.mark.long
def test_a_plan_for_1024_gpus_needs_none(run_example, tmp_path):
    printed = run_example("plan_1024_gpus.py", "--layers", 1)
    assert "none of them in memory" in printed
    assert "on mesh dp=128,tp=8 of h100" in printed
    assert (tmp_path / "build" / "llama_70b.html").exists()


def test_a_custom_operator_is_discovered_planned_and_verified(run_example):
    printed = run_example("custom_op.py")
    assert "S(0) -> S(0)" in printed
    assert "values differ" in printed
    assert "verified: sharded equals unsharded" in printed


@pytest.mark.long
def test_a_hugging_face_model_trains_sharded(run_example):
    printed = run_example("train_hugging_face.py", ranks=4)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] - 0.5
    assert "this rank has (64, 128)" in printed


@pytest.mark.long
def test_a_checkpoint_goes_from_mesh_to_mesh(run_example):
    assert "the same model on another mesh" in run_example("reshard_checkpoint.py", ranks=4)


@pytest.mark.long
def test_the_audit_of_a_library_finds_the_wrong_rule(run_example):
    lines = run_example("audit_op_library.py").splitlines()
    assert lines[0] == "library.rms.default: rows claimed by DTensor: 1, found by experiment: 1"
    assert "  wrong: P(sum) -> P(sum)" in lines
    assert lines[-1].startswith("  no rule; these rows hold: S(0), R -> S(0)")
