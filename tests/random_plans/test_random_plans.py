"""Random plans compute what the models compute: a few here, ten of each model and mesh in `make test-all`, with every
collective waited for where it is begun and with collectives beside calls."""

import pytest

from tests.random_plans.models import MODELS
from tests.random_plans.verifying import MESHES, verified


def assert_all_verified(model, meshes, seeds, ahead=None):
    for found in verified(model, meshes, seeds, ahead):
        assert found.report.ok, f"{model} on {found.mesh}, seed {found.seed}:\n{found.report}"
        assert found.report.sharded


@pytest.mark.parametrize("ahead", [None, 2000])
@pytest.mark.parametrize("model", ["grouped", "separable"])
def test_a_few_random_plans_are_right(model, ahead):
    assert_all_verified(model, MESHES[:2], range(2), ahead)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ahead", [None, 10**5])
@pytest.mark.parametrize("model", MODELS)
def test_ten_random_plans_on_three_meshes_are_right(model, ahead):
    assert_all_verified(model, MESHES, range(10), ahead)
