"""For a number of devices, the mesh and whether there are stages are chosen with the plan, and explained."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import shardwise as sw
from shardwise.planning import Candidate, Pipeline, load_plan
from tests.staged import MODELS

OPTIONS = {"cluster": "laptop", "confirm": False, "compare": False}


class Layers(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return F.mse_loss(x, target)


def layers(width: int, rows: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    with torch.device("meta"):
        return Layers(width), (torch.empty(rows, width), torch.empty(rows, width))


@pytest.fixture(scope="module")
def staged() -> Pipeline:
    """Wide layers of few rows: what crosses between stages is small, parameters and their gradients are not."""
    model, args = layers(2048, 4)
    made = sw.plan(model, args, devices=4, micro_batches=8, **OPTIONS)
    assert isinstance(made, Pipeline)
    return made


@pytest.fixture(scope="module")
def plain() -> sw.Plan:
    """Narrow layers of many rows: all that stages add is waiting."""
    model, args = layers(64, 65536)
    made = sw.plan(model, args, devices=4, micro_batches=4, **OPTIONS)
    assert isinstance(made, sw.Plan)
    return made


def test_stages_are_used_where_they_pay(staged):
    model, args = layers(2048, 4)
    for mesh in ("dp=4", "dp=2,tp=2", "pp=4", "pp=2,dp=2"):
        other = sw.plan(model, args, mesh=mesh, micro_batches=8, **OPTIONS)
        seconds = other.seconds if isinstance(other, Pipeline) else other.cost.seconds
        assert staged.seconds <= seconds * 1.0001, mesh


def test_no_stages_are_used_where_they_do_not(plain):
    model, args = layers(64, 65536)
    for mesh in ("pp=4", "pp=2,dp=2"):
        assert plain.cost.seconds < sw.plan(model, args, mesh=mesh, micro_batches=4, **OPTIONS).seconds


def test_all_meshes_are_candidates_the_fastest_first(staged, plain):
    for made in (staged, plain):
        meshes = [each.mesh for each in made.candidates]
        assert sorted(meshes) == ["dp=2,tp=2", "dp=4", "pp=2,dp=2", "pp=4"]
        assert meshes[0] == str(made.mesh) and not made.candidates[0].estimate
        seconds = [each.seconds for each in made.candidates]
        assert seconds == sorted(seconds)


def test_estimates_are_near_what_is_planned(plain):
    model, args = layers(64, 65536)
    estimates = [each for each in plain.candidates if each.in_stages]
    assert len(estimates) == 2 and all(each.estimate for each in estimates)
    for each in estimates:
        made = sw.plan(model, args, mesh=each.mesh, micro_batches=4, **OPTIONS)
        assert each.seconds == pytest.approx(made.seconds, rel=0.1)
        assert each.idle == pytest.approx(made.time.bubble, abs=0.05)


def test_it_says_why_there_are_stages(staged):
    text = " ".join(staged.explain("pp").split())
    other = next(each for each in staged.candidates if not each.in_stages)
    assert f"the fastest of 2 meshes without stages, {other.mesh}" in text
    assert text.startswith(f"pp: {staged.mesh} takes ") and "idle" in text
    assert "meshes" in str(staged)


def test_it_says_why_there_are_none(plain):
    text = " ".join(plain.explain("pp").split())
    other = next(each for each in plain.candidates if each.in_stages)
    assert f"the fastest of 2 meshes in stages, {other.mesh} by 1F1B, takes about" in text
    assert f"wait for other stages {other.idle:.1%} of the time" in text
    assert other.mesh in plain.summary()


def test_a_place_of_a_stage_is_explained(staged):
    text = staged.explain("layers.5")
    assert text.startswith(f"stage {len(staged.stages) - 1}") and "runner-up" in text
    with pytest.raises(
        sw.UsageError, match=r"'layers\.9' is not a module, node, parameter or input of a stage"
    ):
        staged.explain("layers.9")


def test_candidates_are_saved(staged, plain, tmp_path):
    for made in (staged, plain):
        made.save(tmp_path / "plan.json")
        assert load_plan(tmp_path / "plan.json").candidates == made.candidates


def test_without_micro_batches_there_is_nothing_to_flow():
    model, args = layers(64, 64)
    made = sw.plan(model, args, devices=4, **OPTIONS)
    assert "stages need as many micro-batches as places" in " ".join(made.explain("pp").split())
    given = sw.plan(model, args, mesh="dp=4", **OPTIONS)
    assert "mesh dp=4 was given" in given.explain("pp")


def test_a_model_of_one_part_runs_without_stages():
    made = sw.plan(nn.Linear(8, 8), (torch.rand(4, 8),), devices=2, micro_batches=4, **OPTIONS)
    assert isinstance(made, sw.Plan) and not any(each.in_stages for each in made.candidates)


def test_the_number_of_micro_batches_is_chosen_too():
    model, args = layers(2048, 4)
    made = sw.plan(model, args, devices=2, global_batch=32, recompute="none", **OPTIONS)
    staged = next(each for each in made.candidates if each.in_stages)
    assert staged.micro_batches == 8  # four for each place


def test_where_nothing_fits_it_is_refused():
    model, args = MODELS["tied"]()
    with pytest.raises(sw.UsageError, match=r"needs|fit"):
        sw.plan(model, args, devices=2, micro_batches=4, memory="1KB", **OPTIONS)


def test_a_candidate_is_read_as_it_was_written():
    from shardwise.documents import Field

    candidate = Candidate("pp=2", 4, None, True, "1F1B", why="parts do not fit in 1 GB")
    assert Candidate.read(Field(candidate.to_json())) == candidate
