"""Example calls of an operator from torch's own OpInfo database, for users who give no shapes."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import UsageError
from ._call import Call
from ._names import op_name
from ._torch import opinfos


def foreach_samples(opinfo: Any) -> Iterator[Call]:
    """Sample calls of an operator on lists, with lists of four small tensors."""
    torch.manual_seed(0)
    shapes = {"num_input_tensors": [4], "size": 6}
    for same_size in (True, False):
        given = opinfo.sample_inputs("cpu", torch.float32, requires_grad=False, same_size=same_size, **shapes)
        for sample in given:
            kwargs = {k: v for k, v in sample.kwargs.items() if k != "disable_fastpath"}
            yield Call(opinfo.op, (sample.input, *sample.args), kwargs)


def samples(opinfo: Any, dtype: torch.dtype | None = None) -> Iterator[Call]:
    """Every sample call of an OpInfo on the CPU, with dense tensors."""
    dtypes = opinfo.supported_dtypes("cpu")
    order = (torch.float32, torch.float64, torch.complex64, torch.int64, torch.bool)
    chosen = dtype or next((d for d in order if d in dtypes), next(iter(dtypes), None))
    if chosen is None:
        return
    torch.manual_seed(0)
    for sample in opinfo.sample_inputs("cpu", chosen, requires_grad=False):
        yield Call(opinfo.op, (sample.input, *sample.args), sample.kwargs)


def find_opinfos(op: Callable[..., Any]) -> list[Any]:
    """OpInfos of an operator: by identity, else by the last part of its name."""
    same = [info for info in opinfos() if info.op is op]
    if same:
        return same
    name = op_name(op).split(".")
    names = {name[-1], ".".join(name[1:]), name[1] if len(name) > 1 else name[0]}
    return [info for info in opinfos() if info.name in names or info.aten_name in names]


def best_sample(op: Callable[..., Any]) -> Call:
    """The sample that shows most of an operator: most dims, no size-1 dims, all arguments given."""
    calls = [call for info in find_opinfos(op) for call in samples(info)]
    if not calls:
        raise UsageError(f"no example calls of {op_name(op)} are known: give the shapes, as in --shape 4,6,8")
    return max(calls, key=_coverage)


def _coverage(call: Call) -> tuple[bool, int, int]:
    sizes = [size for t in call.tensors for size in t.shape]
    return (bool(sizes) and min(sizes) > 1, min(len(sizes), 8), len(call.tensors))
