import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardwise.experiments._partials import WAYS, PartialPieces
from shardwise.placements import join, partial

VALUES = st.lists(st.floats(-100, 100), min_size=1, max_size=12)


@given(
    VALUES, st.sampled_from(WAYS), st.integers(2, 4), st.sampled_from(["sum", "avg", "max", "min", "product"])
)
def test_pieces_reduce_to_the_tensor(values, way, ranks, reduction):
    tensor = torch.tensor(values, dtype=torch.float64)
    pieces = PartialPieces(tensor, ranks, way, 1, finite=True).of(reduction)
    assert len(pieces) == ranks
    torch.testing.assert_close(join(pieces, partial(reduction)), tensor, rtol=1e-9, atol=1e-9)


@given(st.lists(st.integers(-50, 50), min_size=1), st.sampled_from(WAYS), st.integers(2, 4))
@pytest.mark.parametrize("reduction", ["sum", "max", "min", "product"])
def test_pieces_of_integers_are_exact(reduction, values, way, ranks):
    tensor = torch.tensor(values)
    pieces = PartialPieces(tensor, ranks, way, 1, finite=True).of(reduction)
    assert torch.equal(join(pieces, partial(reduction)), tensor)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reduction", ["sum", "avg", "max", "min"])
def test_infinities_and_nan_survive_the_split(way, reduction):
    tensor = torch.tensor([1.0, np.inf, -np.inf, np.nan, 2.0], dtype=torch.float64)
    pieces = PartialPieces(tensor, 3, way, 2, finite=False).of(reduction)
    torch.testing.assert_close(join(pieces, partial(reduction)), tensor, equal_nan=True)


def test_pieces_are_not_the_tensor_itself():
    tensor = torch.randn(50, dtype=torch.float64)
    for way in WAYS:
        for reduction in ("sum", "avg", "max", "min"):
            pieces = PartialPieces(tensor, 2, way, 3, finite=True).of(reduction)
            assert not torch.allclose(pieces[0], pieces[1])
