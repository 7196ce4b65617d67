"""Which operators can be reached, and by which calls: torch's OpInfo samples, forward and backward, its operators on
lists, and what the captured graphs of models call.

Every source runs in a process of its own, since some kernels crash; only calls come back, a few diverse ones for each
overload.
"""

import io
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..calls import (
    Call,
    foreach_opinfos,
    foreach_samples,
    most_diverse,
    op_name,
    opinfos,
    overload_calls,
    reached,
    samples,
)
from ..errors import UsageError
from ..experiments import Crash, run_isolated
from ..graph import Graph, TensorInfo, capture
from ..modules import module_of
from ..progress import Progress, silent

# Samples of one source that are made and run, calls of an overload that are kept of one source, elements of a tensor.
_MADE, _SAMPLES = 300, 60
_KEPT = 24
_ELEMENTS = 20_000
_TIMEOUT = 120.0


@dataclass
class Reached:
    """Calls by overload, overloads by function, and sources that reach none, each with a reason."""

    calls: dict[str, list[Call]] = field(default_factory=dict)
    functions: dict[str, list[str]] = field(default_factory=dict)
    unreached: dict[str, str] = field(default_factory=dict)

    def add(self, source: str, found: Any) -> None:
        if isinstance(found, Crash):
            self.unreached[source] = f"running its samples ended the process with {found}"
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some samples are of kinds that torch calls experimental
            calls, functions, reason = torch.load(io.BytesIO(found), weights_only=False)
        for name, kept in calls.items():
            known = self.calls.setdefault(name, [])
            known += kept
        for function, overloads in functions.items():
            counts = Counter(dict.fromkeys(self.functions.get(function, ()), 1)) + Counter(overloads)
            self.functions[function] = sorted(counts, key=lambda op: (-counts[op], op))
        if not calls:
            self.unreached[source] = reason or "its samples call no ATen operator on dense tensors of the CPU"


def reach(models: Path | None = None, pattern: str = "*", progress: Progress = silent) -> Reached:
    """Everything that can be reached; `models` is a file of functions `build_*`, each returning a model, its
    arguments and keyword arguments. `pattern` names the OpInfos or models to start from, with `*`."""
    sources: list[tuple[str, Callable[[], bytes]]] = [
        *((info.formatted_name, partial(_of_opinfo, info, samples)) for info in opinfos()),
        *((info.formatted_name, partial(_of_opinfo, info, foreach_samples)) for info in foreach_opinfos()),
    ]
    if models is not None:
        sources += [(f"{models.stem}.{name}", partial(_of_model, models, name)) for name in _builders(models)]
    sources = [(name, run) for name, run in sources if fnmatch(name, pattern)]
    if not sources:
        raise UsageError(
            f"no OpInfo or model is called {pattern!r}: use a name such as linalg_det, or linalg_*"
        )
    found = Reached()
    for done, (name, run) in enumerate(sources):
        found.add(name, run_isolated(run, _TIMEOUT))
        progress("recording", done + 1, len(sources))
    found.calls = {name: _chosen(found.calls[name]) for name in sorted(found.calls)}
    return found


def _of_opinfo(info: Any, sample: Callable[[Any], Iterator[Any]]) -> bytes:
    warnings.simplefilter("ignore")  # samples try what is deprecated, too
    try:
        made = list(itertools.islice(sample(info), _MADE))
    except Exception as error:  # a few OpInfos need libraries or devices that are not here
        return _packed([], {}, f"its samples cannot be made: {error}")
    calls: list[Call] = []
    fronts: Counter[str] = Counter()
    # Samples often begin with empty tensors, of which little can be said.
    for call in sorted(made, key=_is_empty)[:_SAMPLES]:
        calls += overload_calls(call)
        # Without gradients some functions call other operators, and what writes to its arguments runs.
        calls += overload_calls(call, backward=False)
        fronts.update(_forward(call))
    name = op_name(info.op)
    return _packed(calls, {name: dict(fronts)} if name.startswith("torch.") else {})


def _is_empty(call: Call) -> bool:
    return any(not tensor.numel() for tensor in call.tensors)


def _forward(call: Call) -> list[str]:
    """The one overload that a call reaches without its backward; none where there are several."""
    try:
        names = dict.fromkeys(inner.name for inner in reached(call))
    except Exception:
        return []  # samples may be made to raise
    return list(names) if len(names) == 1 else []


# -- models


def _builders(models: Path) -> list[str]:
    return [name for name in vars(module_of(models)) if name.startswith("build_")]


def _of_model(models: Path, name: str) -> bytes:
    model, args, kwargs = getattr(module_of(models), name)()
    graph = capture(model, args, kwargs)
    return _packed(list(_of_graph(graph)), {})


def _of_graph(graph: Graph) -> Iterator[Call]:
    """The calls of a graph's operators of torch, with values made up: ones where there are no floats."""
    generator = torch.Generator().manual_seed(0)

    def made(info: TensorInfo) -> Tensor:
        if info.dtype.is_floating_point:
            return torch.randn(info.shape, generator=generator).to(info.dtype)
        return torch.ones(info.shape, dtype=info.dtype)

    for node in graph.nodes:
        call = graph.call(node)
        if node.facts.builtin and max((t.numel for t in call.tensors), default=0) <= _ELEMENTS:
            yield call.with_tensors([made(info) for info in call.tensors])


# -- calls


def _packed(calls: Iterable[Call], functions: dict[str, dict[str, int]], reason: str = "") -> bytes:
    by_op: dict[str, dict[str, Call]] = {}
    for call in calls:
        by_op.setdefault(call.name, {}).setdefault(str(call), call)
    kept = {op: _chosen(list(found.values())) for op, found in by_op.items()}
    buffer = io.BytesIO()
    torch.save((kept, functions, reason), buffer)
    return buffer.getvalue()


def _chosen(calls: list[Call]) -> list[Call]:
    """A few diverse calls: of those that experiments can judge, where there are such."""
    without = [c for c in calls if not c.tensors]
    if len(without) == len(calls):
        return without[:_KEPT]
    fitting = [c for c in calls if c.tensors and all(map(_fits, c.tensors))]
    larger = [c for c in fitting if any(t.numel() > 1 for t in c.tensors)]
    some = larger or fitting
    return most_diverse(some, _KEPT) if some else [c for c in calls if c.tensors][:1]


def _fits(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.device.type == "cpu"
        and tensor.dtype != torch.complex32  # which torch itself cannot compare
        and 0 < tensor.numel() <= _ELEMENTS
    )
