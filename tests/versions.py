"""Tests about what not every supported torch has."""

from importlib.util import find_spec

import pytest
import torch

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def from_torch(version: str, reason: str) -> pytest.MarkDecorator:
    """Skip a test before a version of torch; the reason says what that torch lacks."""
    first = tuple(map(int, version.split(".")))
    return pytest.mark.skipif(first > TORCH, reason=f"before torch {version}, {reason}")


def before_torch(version: str, reason: str) -> pytest.MarkDecorator:
    """Skip a test from a version of torch on; the reason says what changed."""
    first = tuple(map(int, version.split(".")))
    return pytest.mark.skipif(first <= TORCH, reason=f"since torch {version}, {reason}")


SAMPLES = "torch's own samples need expecttest, which is not installed"
needs_samples = pytest.mark.skipif(find_spec("expecttest") is None, reason=SAMPLES)
