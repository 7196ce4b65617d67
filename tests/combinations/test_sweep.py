"""What `Combinations` allows holds: a sample of torch's calls here, all of them in `make test-all`."""

import pytest

from tests.combinations.sweep import ATTENTION, sweep

SAMPLE = [
    *(
        "nn_functional_conv2d",
        "nn_functional_conv_transpose1d",
        "nn_functional_group_norm",
        "gather",
        "scatter_add",
    ),
    *(
        "index_put",
        "repeat",
        "view",
        "tril",
        "roll",
        "cat",
        "nn_functional_pixel_shuffle",
        "kron",
        "nn_functional_embedding",
    ),
]


def assert_all_hold(result):
    assert result.refuted == [] and result.failed == []
    assert result.lost == []


def test_choices_of_attention_hold():
    result = sweep(seed=1, only=ATTENTION[:2])
    assert_all_hold(result)
    assert result.with_forms > 100 and result.excluded > 4


def test_choices_of_sampled_operators_hold():
    result = sweep(seed=1, only=SAMPLE, each=1)
    assert_all_hold(result)
    assert len(result.overloads) > 20 and result.with_forms > 100


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_choices_of_all_operators_hold():
    result = sweep(seed=2, jobs=2)
    assert_all_hold(result)
    assert len(result.overloads) > 800
