"""The worked example of a document on discovery, torch.cross, with its generators as they are written there."""

import pytest
import torch
import yaml

import shardwise as sw
from shardwise.emission import report, yaml_report
from shardwise.experiments import ExperimentPolicy, generators
from shardwise.synthesis import studies
from tests.passages import GENERATORS

A, B = torch.rand(8, 3), torch.rand(8, 3)


def test_generators_of_the_document_run_as_they_are_written():
    space = {}
    exec(GENERATORS, space)
    for name in ("gen_orthogonal", "gen_parallel_scaled"):
        sw.adversarial("torch.cross")(space[name])
    found = sw.discover(torch.cross, A, B, dim=1)
    assert [row.text for row in found.rows] == [
        "S(0), S(0) -> S(0)",
        "R, P(sum) -> P(sum)",
        "R, P(avg) -> P(avg)",
        "P(sum), R -> P(sum)",
        "P(avg), R -> P(avg)",
    ]
    assert "gen orthogonal" in set().union(*found.evidence.values())


def test_a_generator_that_needs_three_elements_ends_no_sweep():
    @sw.adversarial("aten.relu*")
    def third(shape, dtype, device, input_idx=0):
        values = torch.zeros(shape, dtype=dtype)
        values[2] = 1
        return values

    assert [str(clause) for clause in sw.synthesize(torch.relu).clauses]


def test_a_fault_of_a_generator_shows():
    @sw.adversarial("torch.relu")
    def broken(shape, dtype, device, input_idx=0):
        return undefined_name  # noqa: F821

    with pytest.raises(NameError):
        sw.discover(torch.relu, A)


@pytest.mark.parametrize("ranks", [(2,), (5,), (6, 8)])
def test_any_number_of_ranks(ranks):
    policy = ExperimentPolicy(ranks=ranks)
    assert [str(row) for row in policy.discover(torch.softmax, torch.rand(4, 6), dim=1).rows] == [
        "S(0) -> S(0)"
    ]
    mean = policy.check(torch.mean, "S(0) -> P(avg)", torch.rand(12), 0)
    assert mean and mean.shards == "even"


def test_a_number_of_ranks_is_at_least_two():
    with pytest.raises(sw.UsageError, match=r"ranks is \(1,\): give numbers of ranks, each at least 2"):
        ExperimentPolicy(ranks=(1,))


@pytest.fixture(scope="module")
def cross():
    return studies(torch.linalg.cross, [((A, B), {"dim": 1})])[0]


def test_the_report_has_the_properties_of_the_document(cross):
    """ "Mathematical property: bilinear", and "Batch dims are independent"."""
    found = report(cross)["analysis"]["mathematical_properties"]
    assert "bilinear in arguments 1 and 2" in found
    assert "batch-wise along d when d != dim" in found
    assert any(text.startswith("permutation-equivariant") for text in found)
    assert any(text.startswith("homogeneous in argument 1") for text in found)


def test_a_reduction_by_the_largest_is_idempotent():
    found = report(studies(torch.amax, [((torch.rand(4, 6), 1), {})])[0])["analysis"][
        "mathematical_properties"
    ]
    assert any(text.startswith("idempotent: its reduction by max") for text in found)
    assert not any(text.startswith(("bilinear", "homogeneous")) for text in found)


def test_the_report_has_numbers_and_every_shape(cross):
    tested = yaml.safe_load(yaml_report([cross]))["sample_inputs_tested"]
    assert tested["world_size"] == [2, 3, 4]
    assert {1, -1} <= set(tested["kwargs_swept"]["dim"])
    assert [[8, 3], [8, 3]] in tested["shapes"]
    calls = {tuple(tuple(t.shape) for t in o.call.tensors) for o in cross.observations}
    assert {tuple(map(tuple, shapes)) for shapes in tested["shapes"]} == calls


def test_cross_products_have_generators_of_their_own():
    names = [g.name for g in generators(("aten.linalg_cross.default",))]
    assert {"orthogonal", "parallel", "opposite"} <= set(names)
    assert "positive definite" in [g.name for g in generators(("aten.linalg_cholesky_ex.default",))]
