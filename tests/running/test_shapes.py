"""One training run with batches of three shapes, on real ranks: it equals the unsharded run."""

from pathlib import Path

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.modules import module_of
from shardwise.running._shapes import Shapes
from shardwise.verification import on_ranks

JOBS = Path(__file__).parent / "shape_jobs.py"


@pytest.fixture(scope="module")
def ranks():
    jobs = module_of(JOBS, "shape_jobs")
    return on_ranks(jobs.run, 0, ranks=4, timeout=240, files={"shape_jobs": str(JOBS)})


def test_training_equals_that_of_the_unsharded_model(ranks):
    for rank in ranks:
        assert rank["losses"][0] == pytest.approx(rank["losses"][1], rel=1e-5)
        ours, expected = rank["state"]
        for name, tensor in expected.items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-5)


def test_each_shape_is_planned_once_with_the_state_where_it_is(ranks):
    for rank in ranks:
        assert rank["plans"][::2] == rank["plans"][1::2] == [(8, 6), (3, 6), (8, 10)]
        first, *others = rank["layouts"]
        assert all(other == first for other in others) and any("S" in layout for layout in first.values())


def test_a_shape_that_is_not_allowed_lists_those_that_are(ranks):
    for rank in ranks:
        assert "called with ids [8, 7], labels [8, 7], for which there is no plan" in rank["other"]
        assert "ids [3, 6], labels [3, 6]; ids [8, 10]" in rank["other"]
        assert "allows ids [any, 6], labels [any, 6]; ids [8, 10], labels [8, 10]" in rank["other"]


def test_ranks_that_are_called_with_different_shapes_say_so(ranks):
    said = [rank["unequal"] for rank in ranks]
    assert any("another rank with ids" in text for text in said) and all(said)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([{"x": "16"}], "sizes, with None for any"),
        ([{"x": (None, 1.5)}], "a whole number, or None for any"),
        (["x"], "shapes by argument"),
    ],
)
def test_shapes_are_read_with_care(shapes, message):
    with pytest.raises(sw.UsageError, match=message):
        Shapes(shapes, nn.Linear(2, 2), {})
