"""How close two runs must be, and how close they are.

The error of a tensor is its largest difference over its largest value: sharding changes the order of sums, and the
rounding error of a sum is relative to its terms. A tensor that is nothing but rounding error (the gradient of a bias
before a normalisation) is measured against the largest of its kind instead.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..running import difference

TOLERANCES = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
_FLOOR = 1e-2  # of the largest value of its kind: below that a tensor may be rounding alone


@dataclass(frozen=True)
class Check:
    """One tensor that was compared. `error` is relative to `scale`; integers and booleans must be equal."""

    kind: str
    name: str
    error: float
    tolerance: float
    scale: float = 1.0

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance

    @property
    def difference(self) -> float:
        return self.error * self.scale


def tolerance(dtype: torch.dtype) -> float:
    return TOLERANCES.get(dtype, 0.0)


def compare(
    kind: str,
    expected: Mapping[str, Any],
    found: Mapping[str, Any],
    disagreements: Mapping[str, float],
    least: torch.dtype | None = None,
    terms: Iterable[Any] = (),
) -> list[Check]:
    """A check for each name of `expected`. `least` is the coarsest dtype that computed them; `terms` are what they are
    sums of, which may cancel."""
    floor = max(floor_of(expected.values()), floor_of(terms))
    checks = []
    for name, tensor in expected.items():
        other = found.get(name)
        if not isinstance(tensor, Tensor) or not isinstance(other, Tensor):
            plain = not isinstance(tensor, Tensor) and not isinstance(other, Tensor)
            same = tensor == other if plain else _is_zero(tensor, other)
            checks.append(Check(kind, name, 0.0 if same else torch.inf, 0.0))
            continue
        real = tensor.is_floating_point() or tensor.is_complex()
        allowed = max(tolerance(tensor.dtype), tolerance(least) if least and real else 0.0)
        error = max(error_of(tensor, other, floor), disagreements.get(name, 0.0))
        checks.append(Check(kind, name, error, allowed, _relative_to(tensor, floor) if real else 1.0))
    return checks


def floor_of(tensors: Iterable[Any]) -> float:
    """The magnitude below which a tensor of this kind, or computed from these, may be rounding error alone."""
    return _FLOOR * max((_scale(t) for t in tensors if isinstance(t, Tensor)), default=0.0)


def error_of(expected: Tensor, found: Tensor, floor: float = 0.0) -> float:
    if expected.shape != found.shape:
        return torch.inf
    if not expected.numel():
        return 0.0
    worst = float(difference(found.detach(), expected.detach()).max())
    if not worst or not (expected.is_floating_point() or expected.is_complex()):
        return worst
    return worst / _relative_to(expected, floor)


def _relative_to(expected: Tensor, floor: float) -> float:
    return max(_scale(expected), floor, torch.finfo(torch.float32).tiny)


def _scale(tensor: Tensor) -> float:
    if not tensor.numel() or tensor.dtype == torch.bool:
        return 0.0
    finite = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return float(finite.detach().double().abs().nan_to_num(0.0, 0.0, 0.0).max())


def _is_zero(*values: Any) -> bool:
    """True if one is missing and the other is zero: no gradient and a gradient of zeros are the same."""
    return any(v is None for v in values) and all(
        v is None or (isinstance(v, Tensor) and not bool(v.any())) for v in values
    )
