"""The rows of one call, checked on 2, 3 and 4 ranks: every rank runs the call on its pieces, with no communication."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

import torch
from torch import Tensor

from shardwise.calls import Call as LibraryCall
from shardwise.forms import Piece, local_call

from .calls import Call, flat
from .judging import Difference, Tolerance, difference, is_real, is_rounding, largest, widened
from .pieces import (
    GRID,
    Claim,
    Placement,
    chunk_sizes,
    claim,
    cut,
    draw_grid,
    draw_integers,
    has_reduction,
    partial_pieces,
    reduced,
)

RANKS = (2, 3, 4)


@dataclass(frozen=True)
class Finding:
    """A row that a run contradicts (or a difference that is rounding), with what is needed to run it again."""

    call: Call
    row: str
    ranks: int
    seed: str
    text: str
    origin: str = ""


@dataclass
class Outcome:
    checks: int = 0
    by_shape: int = 0
    refuted: list[Finding] = field(default_factory=list)
    rounding: list[Finding] = field(default_factory=list)


def check(
    call: Call,
    rows: Sequence[str],
    seed: str,
    ranks: Sequence[int] = RANKS,
    redraw: bool = True,
    mark: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Check rows, given as text, of a call that runs; `mark` is told what is about to run. Every number of ranks gets
    values of its own where `redraw` says so."""
    outcome = Outcome()
    given = Whole(call, call.tensors)
    for n in ranks:
        random = Random(f"{seed} {n}")
        whole = (_redrawn(given, random) if redraw else None) or given
        pieces = Pieces(whole, n, f"{seed} {n}")
        for text in rows:
            mark(f"{text} on {n} ranks")
            stated = _completed(claim(text), call)
            if not _is_claimed(stated, whole, n) or not pieces.are_of(stated.inputs):
                continue
            outcome.checks += 1
            outcome.by_shape += not whole.has_values
            found = _contradiction(stated, whole, pieces)
            if found is None:
                continue
            why = _rounding(found, stated, whole, pieces)
            kept = outcome.refuted if why is None else outcome.rounding
            kept.append(Finding(whole.as_call, text, n, seed, why or found[1].text))
    return outcome


def _points_inside(call: Call) -> bool:
    """False if a gradient is given indices outside of what they point into: kernels trust them, and write there."""
    given = call.arguments
    if pooled := re.search(r"max_pool(\d)d.*_backward", call.name):
        return _is_below(math.prod(given["self"].shape[-int(pooled[1]) :]), given["indices"])
    if "nll_loss" in call.name and "_backward" in call.name:
        classes = given["self"].shape[:2][-1]
        return _is_below(classes, given["target"][given["target"] != given["ignore_index"]])
    return "num_weights" not in given or _is_below(given["num_weights"], given["indices"])


def _is_below(limit: int, indices: Tensor) -> bool:
    return not indices.numel() or (int(indices.min()) >= 0 and int(indices.max()) < limit)


class Whole:
    """The unsharded call on certain tensors, and its outputs."""

    def __init__(self, call: Call, tensors: Sequence[Tensor]) -> None:
        given = call.mapped(lambda i, _: tensors[i])
        if not _points_inside(given):
            raise ValueError("an index lies outside of what it points into")
        if call.arguments.get("assume_unique") and not all(t.numel() == t.unique().numel() for t in tensors):
            raise ValueError("the caller promises that no element occurs twice, and one does")
        self.call, self.tensors = call, list(tensors)
        self.outputs = call.run([t.clone() for t in tensors])
        self.shapes = [tuple(o.shape) if isinstance(o, Tensor) else None for o in self.outputs]
        self.has_values = not (call.is_random or call.is_uninitialised)

    @property
    def as_call(self) -> Call:
        return self.call.mapped(lambda i, _: self.tensors[i])

    @cached_property
    def undetermined(self) -> set[int]:
        """Outputs that are something else when the call runs again, over memory that was used in between."""
        found = set()
        if self.has_values:
            results = []
            for filler in (1, 0x55):
                _dirty_memory(self.outputs, filler)
                try:
                    results.append(self.call.run([surrounded(t, 3) for t in self.tensors]))
                except RuntimeError:  # it takes no views
                    return set(range(len(self.outputs)))
            for i, (first, second) in enumerate(zip(*results, strict=True)):
                if isinstance(first, Tensor) and not same(first, second):
                    found.add(i)
        return found

    @cached_property
    def unit(self) -> float:
        """The relative rounding error of the coarsest floats in it."""
        tensors = [*self.tensors, *(o for o in self.outputs if isinstance(o, Tensor))]
        return max((torch.finfo(t.dtype).eps for t in tensors if is_real(t)), default=0.0)

    @cached_property
    def scale(self) -> float:
        return min(max((largest(t) for t in self.tensors if is_real(t)), default=0.0), 1e6)

    @property
    def is_finite(self) -> bool:
        return all(
            bool(widened(o).isfinite().all()) for o in self.outputs if isinstance(o, Tensor) and is_real(o)
        )


def same(first: Any, second: Any) -> bool:
    """Equal bit for bit; no number is equal to no number."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return first is second or first == second
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    first, second = widened(first), widened(second)
    if torch.equal(first, second):
        return True
    if not is_real(first):
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())


def _dirty_memory(outputs: Sequence[Any], filler: int) -> None:
    """Free blocks as large as the outputs, filled with something: memory that is not written then shows it."""
    tensors = [o for o in outputs if isinstance(o, Tensor)]
    blocks = [torch.full((t.numel() * t.itemsize,), filler, dtype=torch.uint8) for t in tensors]
    del blocks


def surrounded(tensor: Tensor, value: int) -> Tensor:
    """A copy of a dense tensor with a value before and behind it in memory."""
    margin = 64 + tensor.numel()
    memory = torch.full((tensor.numel() + 2 * margin,), value, dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride(), margin).copy_(tensor)


class Pieces:
    """What the ranks hold of a call's tensors, by placement; drawn or cut once for all rows."""

    def __init__(self, whole: Whole, ranks: int, seed: str) -> None:
        self.whole, self.ranks, self.seed = whole, ranks, seed
        self._held: dict[tuple[int, Placement], list[Tensor]] = {}
        writes = whole.call.op._schema.is_mutable or "batch_norm" in whole.call.name
        self._copies = writes  # those of batch norm write their running statistics without saying so

    def of(self, index: int, placed: Placement) -> list[Tensor]:
        key = (index, placed)
        if key not in self._held:
            tensor = self.whole.tensors[index]
            if placed.kind == "R":
                self._held[key] = [tensor] * self.ranks
            elif placed.kind == "S":
                self._held[key] = cut(tensor, placed.dim, self.ranks)
            else:
                random = Random(f"{self.seed} {index} {placed.reduction}")
                self._held[key] = partial_pieces(tensor, placed.reduction, self.ranks, random)
        return self._held[key]

    def are_of(self, inputs: Sequence[Placement]) -> bool:
        """False where no pieces of an input reduce to it: a sum of numbers near the largest is infinite."""
        return all(
            bool((reduced(self.of(i, placed), placed.reduction).isfinite() | ~tensor.isfinite()).all())
            for i, (tensor, placed) in enumerate(zip(self.whole.tensors, inputs, strict=False))
            if placed.kind == "P" and has_reduction(tensor.dtype, placed.reduction)
        )

    def ranks_of(self, inputs: Sequence[Placement]) -> list[list[Tensor]]:
        """For every rank its pieces of all inputs."""
        held = [self.of(i, placed) for i, placed in enumerate(inputs)]
        ranks = [[pieces[rank] for pieces in held] for rank in range(self.ranks)]
        return [[t.clone() for t in tensors] for tensors in ranks] if self._copies else ranks


def _completed(stated: Claim, call: Call) -> Claim:
    """What an operator writes without returning it stays placed as it was."""
    return stated._replace(outputs=tuple(stated.inputs[i] for i in call.written)) if call.written else stated


def _is_claimed(stated: Claim, whole: Whole, ranks: int) -> bool:
    """True if the row speaks of shards of the sizes that this many ranks have."""
    if stated.shards == "any":
        return True
    placed = [
        *zip(whole.call.shapes, stated.inputs, strict=False),
        *zip(whole.shapes, stated.outputs, strict=False),
    ]
    for shape, p in placed:
        if shape is None or p is None or p.kind != "S" or p.dim >= len(shape):
            continue
        sizes = chunk_sizes(shape[p.dim], ranks)
        if sizes[-1] == 0 or (stated.shards == "even" and sizes[-1] != sizes[0]):
            return False
    return True


def _contradiction(stated: Claim, whole: Whole, pieces: Pieces) -> tuple[int, Difference] | None:
    """The first output that is not what the row claims, and how it differs; -1 where the call does not run."""
    if len(stated.inputs) != len(whole.tensors) or len(stated.outputs) != len(whole.outputs):
        return -1, Difference("the row is not about as many tensors as the call")
    for shape, p in zip(whole.call.shapes, stated.inputs, strict=True):
        if p.kind == "S" and p.dim >= len(shape):
            return -1, Difference(f"S({p.dim}) is claimed of an input with {len(shape)} dims")
    for tensor, p in zip(whole.tensors, stated.inputs, strict=True):
        if p.kind == "P" and not has_reduction(tensor.dtype, p.reduction):
            return -1, Difference(f"P({p.reduction}) is claimed of an input of {tensor.dtype}")
    results = []
    for rank, tensors in enumerate(pieces.ranks_of(stated.inputs)):
        try:
            results.append(_local_run(stated, whole, tensors, rank, pieces.ranks))
        except Exception as error:
            return -1, Difference(f"rank {rank} raises {type(error).__name__}: {str(error).splitlines()[:1]}")
        if len(results[-1]) != len(whole.outputs):
            return -1, Difference(f"rank {rank} returns {len(results[-1])} results, not {len(whole.outputs)}")
    has_partials = any(p is not None and p.kind == "P" for p in (*stated.inputs, *stated.outputs))
    rules = Tolerance(
        whole.unit, whole.scale, infinities=not has_partials, only_finite=whole.call.has_special_numbers
    )
    for i, (expected, placed) in enumerate(zip(whole.outputs, stated.outputs, strict=True)):
        if placed is None or not isinstance(expected, Tensor):
            continue
        values = whole.has_values and i not in whole.undetermined
        local = [rank[i] for rank in results]
        if (found := difference(expected, local, placed, rules if values else None)) is not None:
            return i, found._replace(text=f"output {i}: {found.text}")
    return None


def _local_run(stated: Claim, whole: Whole, tensors: list[Tensor], rank: int, ranks: int) -> list[Any]:
    if stated.local is None:
        return whole.call.run(tensors)
    args, kwargs = whole.call.with_tensors_and_outs(tensors)
    inputs = [_piece(s, p, rank, ranks) for s, p in zip(whole.call.shapes, stated.inputs, strict=True)]
    outputs = [
        None if s is None else _piece(s, p, rank, ranks)
        for s, p in zip(whole.shapes, stated.outputs, strict=True)
    ]
    result = local_call(stated.local, LibraryCall(whole.call.op, tuple(args), kwargs), inputs, outputs)
    return flat(result)


def _piece(shape: tuple[int, ...], placed: Placement | None, rank: int, ranks: int) -> Piece:
    if placed is None or placed.kind != "S":
        return Piece(shape, shape, (0,) * len(shape))
    sizes = chunk_sizes(shape[placed.dim], ranks)
    local, offset = list(shape), [0] * len(shape)
    local[placed.dim], offset[placed.dim] = sizes[rank], sum(sizes[:rank])
    return Piece(shape, tuple(local), tuple(offset))


def _rounding(found: tuple[int, Difference], stated: Claim, whole: Whole, pieces: Pieces) -> str | None:
    output, how = found
    if how.error is None:
        return None
    scales = [
        max(map(largest, pieces.of(i, p))) if p.kind == "P" else largest(whole.tensors[i])
        for i, p in enumerate(stated.inputs)
    ]
    return is_rounding(how, lambda tensors: whole.call.run(tensors)[output], whole.tensors, scales)


def _redrawn(given: Whole, random: Random) -> Whole | None:
    """The call on other values, where it runs on them as it did on its own; None where it is to keep them."""
    kind = random.choice(("own", "shuffled", "normal", "small integers", "positive"))
    if kind == "own" or not given.has_values:
        return None
    call = given.call
    chosen = [random.random() < 0.8 for _ in call.tensors]
    tensors = [other_values(t, kind, random) if c else t for t, c in zip(call.tensors, chosen, strict=True)]
    for i in call.ascending:
        tensors[i] = tensors[i].sort(-1).values
    try:
        whole = Whole(call, tensors)
    except Exception:  # out of the operator's domain, in whatever way it says so
        return None
    fits = (
        whole.shapes == given.shapes and not whole.undetermined and (whole.is_finite or not given.is_finite)
    )
    return whole if fits else None


def other_values(tensor: Tensor, kind: str, random: Random) -> Tensor:
    """Other values of the same shape. Integers are indices as a rule: they are only shuffled, and seldom."""
    if not tensor.numel() or (not is_real(tensor) and random.random() < 0.6):
        return tensor
    if kind == "shuffled" or not is_real(tensor):
        order = draw_integers(0, 1 << 30, (tensor.numel(),), random).argsort()
        return torch.empty_like(tensor).copy_(tensor.flatten()[order].reshape(tensor.shape))
    if kind == "small integers":
        drawn = draw_integers(-3, 4, tensor.shape, random).double()
    else:
        drawn = draw_grid(3.0, tensor.shape, random)
    if kind == "positive":
        drawn = drawn.abs() / 4 + 1 / GRID
    if tensor.is_complex():
        drawn = torch.complex(drawn, draw_grid(2.0, tensor.shape, random))
    return torch.empty_like(tensor).copy_(drawn)
