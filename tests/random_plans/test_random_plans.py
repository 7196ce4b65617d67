"""Random plans compute what the models compute: a few here, twenty of each model and mesh in `make test-all`."""

import pytest

from tests.random_plans.models import MODELS
from tests.random_plans.verifying import MESHES, verified


def assert_all_verified(model, meshes, seeds):
    for found in verified(model, meshes, seeds):
        assert found.report.ok, f"{model} on {found.mesh}, seed {found.seed}:\n{found.report}"
        assert found.report.sharded


@pytest.mark.parametrize("model", ["grouped", "separable"])
def test_a_few_random_plans_are_right(model):
    assert_all_verified(model, MESHES[:2], range(3))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", MODELS)
def test_twenty_random_plans_on_three_meshes_are_right(model):
    assert_all_verified(model, MESHES, range(20))
