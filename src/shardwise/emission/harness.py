"""The names of the step-by-step discovery harness, as thin fronts: for those who followed its eight steps by hand.

from shardwise.emission.harness import analyze_and_synthesize, discover_strategies
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..experiments import ExperimentPolicy, ascending, discover, negative, normal
from ..synthesis import studies
from ._report import yaml_report


def discover_strategies(
    op: Callable[..., Any],
    op_name: str = "",
    input_ndims: Sequence[int] = (),
    output_ndims: Sequence[int] = (),
    input_shape: Sequence[int] = (),
    device: torch.device | str = "cpu",
    world_size: int = 2,
    **kwargs: Any,
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The rows of one call as (inputs, outputs) in text; `kwargs` go to the operator."""
    policy = ExperimentPolicy(ranks=_ranks(world_size))
    found = policy.discover(op, *_tensors(input_ndims, input_shape, device), **kwargs)
    document = found.to_json()
    return [(tuple(row["inputs"]), tuple(row["outputs"])) for row in document["rows"]]


def analyze_and_synthesize(
    op: Callable[..., Any],
    op_name: str = "",
    input_ndims: Sequence[int] = (),
    output_ndims: Sequence[int] = (),
    input_shape: Sequence[int] = (),
    device: torch.device | str = "cpu",
    world_size: int = 2,
    dim_param: str = "dim",
    dim_values: Sequence[int] = (),
) -> dict[str, Any]:
    """Sweep, synthesize and report; `"formatted"` is the report as text."""
    tensors = _tensors(input_ndims, input_shape, device)
    by_dim = {
        value: [str(r) for r in discover(op, *tensors, **{dim_param: value}).rows] for value in dim_values
    }
    examples = [(tensors, {dim_param: value}) for value in dim_values] or [(tensors, {})]
    found = studies(op, examples)
    rule = found[0].rule
    return {
        "op_name": op_name or found[0].op,
        "rows_by_dim": by_dim,
        "clauses": [] if rule is None else [str(c) for c in rule.clauses],
        "rule": rule,
        "formatted": yaml_report(found[:1]),
    }


def _tensors(ndims: Sequence[int], shape: Sequence[int], device: torch.device | str) -> list[Tensor]:
    """Inputs of the given ranks: the last dims of `shape`."""
    return [torch.randn(tuple(shape)[len(shape) - n :], device=device) for n in ndims or (len(shape),)]


def _ranks(world_size: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys((world_size, 2, 3, 4)))


make_randn = normal
make_arange = ascending
make_negative = negative


def make_zeros(shape: Sequence[int], dtype: torch.dtype, device: Any, input_idx: int = 0) -> Tensor:
    """All zeros."""
    return torch.zeros(tuple(shape), dtype=dtype, device=device)


def make_ones(shape: Sequence[int], dtype: torch.dtype, device: Any, input_idx: int = 0) -> Tensor:
    """All ones."""
    return torch.ones(tuple(shape), dtype=dtype, device=device)
