"""Ways of training that surround a model, on real ranks: each equals the unsharded run."""

from pathlib import Path

import pytest
import torch

from shardwise.modules import module_of
from shardwise.verification import on_ranks

JOBS = Path(__file__).parent / "mode_jobs.py"


@pytest.fixture(scope="module")
def ranks():
    jobs = module_of(JOBS, "mode_jobs")
    return on_ranks(jobs.run, 0, ranks=2, timeout=240, files={"mode_jobs": str(JOBS)})


@pytest.mark.parametrize(
    "mode",
    [
        "adapters",
        "frozen parts",
        "scaled losses",
        "gradients that overflow",
        "clipping and two optimizers",
        "loss outside",
    ],
)
def test_three_steps_equal_those_of_the_unsharded_model(ranks, mode):
    tolerance = 2e-2 if mode == "scaled losses" else 1e-5  # it computes in bfloat16
    for rank in ranks:
        (losses, state), (expected, expected_state) = rank[mode]
        assert losses == pytest.approx(expected, rel=tolerance)
        assert state.keys() == expected_state.keys()
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, expected_state[name], rtol=tolerance, atol=tolerance / 10)


def test_a_step_whose_gradients_overflow_is_skipped_on_all_ranks(ranks):
    for rank in ranks:
        first, scale, second, same_scale, third, _ = rank["gradients that overflow"][0][0]
        assert first == second and second > third and scale == same_scale == 2.0**126


def test_autocast_around_a_call_must_be_that_of_the_plan(ranks):
    for rank in ranks:
        assert "planned without autocast, but is called under autocast to bfloat16" in rank["autocast"]
