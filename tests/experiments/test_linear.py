"""Linear operators take partial sums and averages, although an infinity in one part reaches all that depends on it."""

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw

REAL, COMPLEX = torch.randn(6, 8), torch.randn(6, 8, dtype=torch.complex64)
IMAGE, MATRIX = torch.randn(2, 3, 8, 6), torch.randn(4, 4) + 4 * torch.eye(4)


def solve(right):
    """A linear solve by a fixed matrix."""
    return torch.linalg.solve(MATRIX.to(right.dtype), right)


LINEAR = {
    "fft": (torch.fft.fft, REAL),
    "ifft": (torch.fft.ifft, COMPLEX),
    "rfft": (torch.fft.rfft, REAL),
    "irfft": (torch.fft.irfft, COMPLEX),
    "fft2": (torch.fft.fft2, REAL),
    "stft": (
        lambda x: torch.stft(x, 8, window=torch.ones(8, dtype=x.dtype), return_complex=True),
        torch.randn(3, 24),
    ),
    "cumsum": (lambda x: torch.cumsum(x, 1), REAL),
    "conv1d": (lambda x: F.conv1d(x, torch.ones(4, 3, 3, dtype=x.dtype)), torch.randn(2, 3, 9)),
    "conv2d": (lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3, dtype=x.dtype)), IMAGE),
    "solve": (solve, torch.randn(4, 3)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE),
    "fold": (lambda x: F.fold(x, (4, 5), (2, 2)), torch.randn(2, 12, 12)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_sums_and_averages_pass_through_a_linear_operator(name):
    op, x = LINEAR[name]
    found = {str(row) for row in sw.discover(op, x).rows}
    assert {"P(sum) -> P(sum)", "P(avg) -> P(avg)"} <= found


@pytest.mark.parametrize("op", [torch.nan_to_num, torch.relu, torch.special.expit, torch.sgn])
def test_what_is_not_linear_is_refuted_all_the_same(op):
    assert not sw.check(op, "P(sum) -> P(sum)", torch.randn(4, 6))
