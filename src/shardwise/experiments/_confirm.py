"""Choices confirmed at use: a call with the rows chosen on all axes, run once at a small size.

The mesh is made as small as it can be with what is tested unchanged: axes on which all is replicated are left out, the
others have two ranks, or the smallest number that divides theirs. Sizes follow, so that what could be cut evenly still
can be, and what could not cannot.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..cache import Cache
from ..calls import Call, facts, small_calls, small_sizings, with_saved
from ..expansion import Choice, is_valid_for
from ..mesh import Mesh
from ..progress import Progress, silent
from ._isolated import Crash, run_isolated
from ._on_mesh import MeshExperiment, Tried

# Of what is tested: what an older experiment found is not used.
_GENERATION = 2
# Elements of the tensors of a call that is small enough to be run as it is.
_FEW = 4096
# Seconds without a word after which an experiment is given up.
_PATIENCE = 60

Item = tuple[Call, Choice]

# By operator and text, found by this process.
_found_here: dict[tuple[Any, str], Tried] = {}


class Confirmations:
    """Experiments on choices, each run once: what they found is kept in a folder, but for operators that are not
    torch's, which their authors may change.

    `run` runs the experiments; `here` is what this process has found.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        run: Callable[[Sequence[Item], Progress], list[Tried]] | None = None,
        here: dict[tuple[Any, str], Tried] = _found_here,
    ) -> None:
        self.kept = Cache(f"choices-{{torch}}-{_GENERATION}", "confirmed choices", folder)
        self.run, self.here = run or run_all, here

    def known(self, call: Call, choice: Choice) -> Tried | None:
        """What an earlier experiment found; None if there was none."""
        if all(row.is_replicated for row in choice.rows):
            return Tried("holds")
        text = _text(call, choice)
        if (found := self.here.get((call.op, text))) is not None:
            return found
        entry = self.kept.get(text) if facts(call.op).builtin else None
        return None if entry is None else Tried(entry["outcome"], entry["reason"])

    def of(self, items: Sequence[Item], progress: Progress = silent) -> list[Tried]:
        """What experiments say about each choice of a call; they run in processes of their own."""
        texts = [_text(*item) for item in items]
        open_ = {text: item for text, item in zip(texts, items, strict=True) if self.known(*item) is None}
        found = dict(zip(open_, self.run(list(open_.values()), progress) if open_ else [], strict=True))
        keep = {}
        for text, tried in found.items():
            op = open_[text][0].op
            self.here[op, text] = tried
            # A process that was slow or was stopped says nothing about the next.
            if facts(op).builtin and not tried.reason.startswith(_ENDED):
                keep[text] = {"outcome": tried.outcome, "reason": tried.reason}
        if keep:
            self.kept.keep(keep)
        known = (self.known(*item) for item in items)
        return [tried if tried is not None else Tried("undecided") for tried in known]


_ENDED = "the experiment ended with "


def run_all(items: Sequence[Item], progress: Progress) -> list[Tried]:
    """The experiments in one process of their own; if that crashes, each half in one."""
    result = run_isolated(partial(_confirm_all, items), timeout=_PATIENCE, progress=progress)
    if not isinstance(result, Crash):
        return result
    if len(items) == 1:
        return [Tried("undecided", f"{_ENDED}{result}")]
    middle = len(items) // 2
    return [*run_all(items[:middle], progress), *run_all(items[middle:], progress)]


def _confirm_all(items: Sequence[Item], progress: Progress) -> list[Tried]:
    found = []
    for number, (call, choice) in enumerate(items):
        progress("confirming", number, len(items))
        found.append(confirm(call, choice))
    return found


def confirm(call: Call, choice: Choice) -> Tried:
    """Whether the rows of a choice hold together for a call like this one with small sizes, in this process."""
    with _disable_current_modes():  # which may make fake tensors, or those of all ranks
        return _confirm(call, choice)


def _confirm(call: Call, choice: Choice) -> Tried:
    if facts(call.op).random:
        return Tried("undecided", "random operators are tested by their streams")
    small = _smaller(choice)
    if not small.mesh.ndim:
        return Tried("holds")
    reason = "no small call like it runs"
    for candidate in itertools.islice(_candidates(call, choice, small), 6):
        if not is_valid_for(small, candidate):
            reason = "no small call like it can be sharded so"
            continue
        for values in _with_values(candidate):
            tried = MeshExperiment(values).check(small)
            if tried.outcome != "undecided":
                return tried
            reason = tried.reason
    return Tried("undecided", reason)


def _smaller(choice: Choice) -> Choice:
    """The choice on the smallest mesh on which it tests the same."""
    axes = [
        axis for axis, row in enumerate(choice.rows) if not row.is_replicated and choice.mesh.shape[axis] > 1
    ]
    mesh = Mesh(
        tuple(choice.mesh.names[axis] for axis in axes),
        tuple(_least_factor(choice.mesh.shape[axis]) for axis in axes),
    )
    return Choice(mesh, tuple(choice.rows[axis] for axis in axes), choice.source)


def _least_factor(size: int) -> int:
    return next((f for f in range(2, math.isqrt(size) + 1) if size % f == 0), size)


def _candidates(call: Call, choice: Choice, small: Choice) -> Iterator[Call]:
    """Small calls to try in turn: as it is, where that is small and so is the mesh."""
    before = [choice.mesh[name] for name in small.mesh.names]
    if tuple(before) == small.mesh.shape and sum(map(math.prod, call.shapes)) <= _FEW:
        yield from small_calls(call, [{}])
    cuts = {
        (math.prod(before[i] for i in axes), math.prod(small.mesh.shape[i] for i in axes))
        for count in range(1, len(before) + 1)
        for axes in itertools.combinations(range(len(before)), count)
    }
    yield from small_calls(call, small_sizings(call, sorted(cuts)))


def _with_values(call: Call) -> Iterator[Call]:
    """The call with values that it takes: integers as large as its sizes, where they may be, so that indices reach
    everywhere."""
    generator = torch.Generator().manual_seed(0)
    sizes = sorted({size for shape in call.shapes for size in shape if size > 1}, reverse=True)
    integers = any(
        not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool) for t in call.tensors
    )

    def drawn(tensor: torch.Tensor, high: int) -> torch.Tensor:
        if tensor.is_floating_point() or tensor.is_complex():
            return torch.randn(tensor.shape, dtype=torch.float64, generator=generator).to(tensor.dtype)
        return torch.randint(0, high, tensor.shape, generator=generator).to(tensor.dtype)

    for high in (*(sizes if integers else ()), 2):
        valued = call.with_tensors([drawn(t, high) for t in call.tensors], call.made)
        try:
            valued = with_saved(valued)
            valued.run()
        except Exception:  # whatever the operator raises, it does not take these
            continue
        yield valued


def _text(call: Call, choice: Choice) -> str:
    rows = "; ".join(row.text for row in choice.rows)
    return f"{call} on {'x'.join(map(str, choice.mesh.shape))}: {rows}"
