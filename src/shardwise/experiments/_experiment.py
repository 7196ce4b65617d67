"""An experiment: one call at certain sizes and values, on a number of ranks.

It holds the whole inputs and outputs, splits the inputs into local pieces, runs the call on each rank's
pieces, and compares the local outputs with placements of the whole ones. Pieces are cut once for all rows. An input
that the call writes to counts as one more output, after those it returns.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement

from ..calls import Call, flat_outputs
from ..errors import first_line
from ..forms import Held, Piece, calls_together, is_communicating, local_call, operator_by
from ..placements import Shards, is_partial, is_replicate, is_shard, piece_sizes, shard_sizes, split
from ._judge import Excuse, Expected, array
from ._partials import PartialPieces

# What the shards of one run look like: none sharded, or the worst of the sharded dims.
Division = Literal["whole", "even", "uneven", "empty"]
DIVISIONS: tuple[Division, ...] = ("whole", "even", "uneven", "empty")
# The cases that a row claims, by the shards for which it is claimed.
CLAIMED: dict[Shards, tuple[Division, ...]] = {
    "any": DIVISIONS,
    "nonempty": DIVISIONS[:3],
    "even": DIVISIONS[:2],
}

# Local outputs: for each output, the arrays of all ranks.
Local = list[list[np.ndarray]]


class LocalRunFailed(Exception):
    """The operator raised on local pieces, or returned outputs that no placement describes."""


class Experiment:
    def __init__(
        self,
        call: Call,
        ranks: int,
        generator: str,
        inputs: Sequence[Tensor],
        way: str,
        special_input: int | None = None,
        mutated: tuple[int, ...] = (),
    ) -> None:
        self.call = call
        self.ranks = ranks
        self.generator = generator
        self.inputs = inputs
        self.way = way
        self.special_input = special_input
        self.mutated = mutated
        self.allows_empty = True
        self._pieces: dict[tuple[int, Placement], list[Tensor]] = {}
        self._partials: dict[int, PartialPieces] = {}
        self._cases: dict[tuple[int, int], Division] = {}
        copies = [t.clone() for t in inputs]
        results = [*self.call.run(copies), *(copies[i] for i in mutated)]
        finite = special_input is None
        self.outputs = [Expected(r, finite, inputs) if isinstance(r, Tensor) else r for r in results]
        self.dtypes = [r.dtype if isinstance(r, Tensor) else None for r in results]

    def __repr__(self) -> str:
        shapes = " ".join(map(str, self.call.shapes))
        return f"{self.generator} values, shapes {shapes}, {self.ranks} ranks, partials split {self.way!r}"

    def fits(self, inputs: Sequence[Placement]) -> bool:
        """Infinities and NaN test the input they sit in: beside other inputs that are partial, inf - inf on one
        rank is a spurious failure, due to where the infinity came from, not to the row."""
        if not self.allows_empty and self.input_case(inputs) == "empty":
            return False
        special = self.special_input
        if special is None or is_partial(inputs[special]):
            return True
        return not any(is_partial(p) for p in inputs)

    def excused(self, inputs: Sequence[Placement], output: Placement, form: str | None = None) -> Excuse:
        """Which differences a sum over the ranks may have, where infinities and NaN are among the values.

        If every rank has the same infinity, each multiplies it by values of its own, of either sign or none: inf - inf
        and 0 * inf are excused. If the infinity is one rank's part of a sum, it is no number that exact arithmetic
        could add: a linear operator spreads it (a Fourier transform to every element), and what it reaches is excused.
        A form may give numbers where the whole call gives NaN, or other infinities: there its result is excused.
        """
        special = self.special_input
        if special is None:
            return "nothing"
        if form is not None:
            operator = operator_by(form, self.call)
            if operator.less_nan or operator.other_infinities:
                return "less_nan" if operator.less_nan else "infinite"
        if not _adds(output):
            return "nothing"
        if is_replicate(inputs[special]):
            return "cancelled"
        return "infinite" if _adds(inputs[special]) else "nothing"

    def size_case(self, size: int, placement: Placement) -> Division:
        blocks = getattr(placement, "split_factor", 1)
        case = self._cases.get((size, blocks))
        if case is None:
            sizes = piece_sizes(size, placement, self.ranks)
            # A strided shard is even only if each of its blocks is: other blocks put other positions together.
            even = min(sizes) == max(sizes) and (blocks == 1 or size % (blocks * self.ranks) == 0)
            case = "even" if even else "uneven" if min(sizes) else "empty"
            self._cases[size, blocks] = case
        return case

    def input_case(self, inputs: Sequence[Placement]) -> Division:
        case: Division = "whole"
        for shape, placement in zip(self.call.shapes, inputs, strict=True):
            if is_shard(placement):
                case = worst(case, self.size_case(shape[placement.dim], placement))
        return case

    def row_case(self, input_case: Division, output: int, placement: Placement) -> Division:
        """The case of a row: an output may be cut worse than the inputs (a view that splits a dim). A rule may even
        claim a shard of a dim that the output lacks."""
        shape = self.outputs[output].shape
        if is_shard(placement) and placement.dim < len(shape):
            return worst(input_case, self.size_case(shape[placement.dim], placement))
        return input_case

    def pieces(self, index: int, placement: Placement) -> list[Tensor]:
        key = (index, placement)
        known = self._pieces.get(key)
        if known is None:
            known = self._pieces[key] = self._cut(index, placement)
        return known

    def _cut(self, index: int, placement: Placement) -> list[Tensor]:
        tensor = self.inputs[index]
        if is_partial(placement):
            if index not in self._partials:
                seed, finite = 10 * index + self.ranks, self.special_input != index
                self._partials[index] = PartialPieces(tensor, self.ranks, self.way, seed, finite)
            return self._partials[index].of(placement.reduce_op)
        if is_replicate(placement):
            return [tensor.contiguous()] * self.ranks
        # `as_strided` would see the other pieces through a piece that is a view.
        plain = torch.contiguous_format
        return [piece.clone(memory_format=plain) for piece in split(tensor, placement, self.ranks)]

    def run(
        self,
        inputs: Sequence[Placement],
        local: str | None = None,
        outputs: Sequence[Placement | None] = (),
    ) -> Local:
        """Run every rank on its pieces, by the local form `local` where one is named; that may depend on how the
        outputs are placed (None where that is open)."""
        cut = [self.pieces(i, placement) for i, placement in enumerate(inputs)]
        held = [[pieces[rank] for pieces in cut] for rank in range(self.ranks)]
        for tensors in held:
            for i in self.mutated:
                tensors[i] = tensors[i].clone()
        results = [
            [*flat_outputs(result), *(tensors[i] for i in self.mutated)]
            for result, tensors in zip(self._run_on_each(held, local, inputs, outputs), held, strict=True)
        ]
        return self._arrays(results)

    def _run_on_each(
        self,
        held: Sequence[list[Tensor]],
        form: str | None,
        inputs: Sequence[Placement],
        outputs: Sequence[Placement | None],
    ) -> list[Any]:
        """What each rank computes from its local tensors, alone or in a form that communicates."""
        if is_communicating(form):
            assert form is not None
            calls = [self._guarded.with_tensors(tensors) for tensors in held]
            places = [self._held(rank, inputs, outputs) for rank in range(self.ranks)]
            try:
                return calls_together(form, calls, places)
            except Exception as error:
                raise LocalRunFailed(f"a rank raised: {first_line(error)}") from error
        results, runner = [], self.call.runner
        for rank, tensors in enumerate(held):
            try:
                if form is None:
                    results.append(runner(tensors))
                else:
                    place = self._held(rank, inputs, outputs)
                    call = self._guarded.with_tensors(tensors)
                    results.append(local_call(form, call, place.inputs, place.outputs))
            except Exception as error:
                raise LocalRunFailed(f"rank {rank} raised: {first_line(error)}") from error
        return results

    def _held(self, rank: int, inputs: Sequence[Placement], outputs: Sequence[Placement | None]) -> Held:
        shapes = [r.shape if isinstance(r, Expected) else None for r in self.outputs]
        given = [self._piece(s, p, rank) for s, p in zip(self.call.shapes, inputs, strict=True)]
        made = [None if s is None else self._piece(s, p, rank) for s, p in zip(shapes, outputs, strict=True)]
        return Held(self.call, given, made)

    @cached_property
    def _guarded(self) -> Call:
        return replace(self.call, guarded=True)

    def _piece(self, shape: tuple[int, ...], placement: Placement | None, rank: int) -> Piece:
        if placement is None or not is_shard(placement):
            return Piece.whole(shape)
        if hasattr(placement, "split_factor"):
            raise LocalRunFailed("local forms need contiguous shards, not strided ones")
        dim, sizes = placement.dim, shard_sizes(shape[placement.dim], self.ranks)
        start = [0] * len(shape)
        start[dim] = sum(sizes[:rank])
        return Piece(shape, (*shape[:dim], sizes[rank], *shape[dim + 1 :]), tuple(start))

    def _arrays(self, outputs: list[list[Any]]) -> Local:
        local: Local = []
        for i, expected in enumerate(self.outputs):
            values = [ranks[i] if i < len(ranks) else None for ranks in outputs]
            if isinstance(expected, Expected):
                dtype, arrays = self.dtypes[i], []
                for value in values:
                    if not isinstance(value, Tensor) or value.dtype is not dtype:
                        raise LocalRunFailed(f"output {i} is not a tensor of {dtype} on every rank")
                    arrays.append(array(value))
                local.append(arrays)
            else:
                if any(isinstance(v, Tensor) or v != expected for v in values):
                    raise LocalRunFailed(f"output {i}, which is not a tensor, differs between ranks")
                local.append([])
        return local


def _adds(placement: Placement) -> bool:
    return is_partial(placement) and placement.reduce_op in ("sum", "avg")


_ORDER = {case: i for i, case in enumerate(DIVISIONS)}


def worst(first: Division, second: Division) -> Division:
    return first if _ORDER[first] >= _ORDER[second] else second
