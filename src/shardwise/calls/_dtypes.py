"""Dtypes of results that torch's kernels and its fake tensors disagree on, as functions of the arguments of a call."""

from collections.abc import Mapping
from typing import Any

import torch


def statistics_like_weight(
    *, weight: Any = None, running_mean: Any = None, **_: Any
) -> Mapping[int, torch.dtype]:
    """Mean and reciprocal deviation have the dtype of the parameters, or of running statistics, which in mixed
    precision is not the input's."""
    like = running_mean if weight is None else weight
    return {} if like is None else {1: like.dtype, 2: like.dtype}


def gradient_like_input(*, input: Any, **_: Any) -> Mapping[int, torch.dtype]:
    """The gradient of the input has its dtype, whatever those of the statistics are."""
    return {0: input.dtype}


def of_product(*, self: Any, out_dtype: torch.dtype | None = None, **_: Any) -> Mapping[int, torch.dtype]:
    """A product of matrices that fake tensors refuse, as they know neither float32 nor how pieces are stored."""
    return {0: out_dtype or self.dtype}


def norms_of_half(*, g: Any, **_: Any) -> Mapping[int, torch.dtype]:
    """The norms of vectors are float32 for float16 too, not only for bfloat16."""
    return {1: torch.float32} if g.dtype == torch.float16 else {}
