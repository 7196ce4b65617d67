"""An experiment on a mesh of several axes: one row per axis, all of them together.

Rows are found one axis at a time. Whether they hold together is tested here: the inputs are laid out over simulated
ranks as the choice says, every rank runs the call, or its local form, and the outputs put together must be those of the
whole call.
"""

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..calls import Call, facts, flat_outputs
from ..errors import first_line
from ..expansion import Choice
from ..forms import calls_together, local_call
from ..layout import Layout
from ..placements import is_partial, is_replicate, parse_placement
from ._judge import Expected, array
from ._partials import PartialPieces
from ._suite import in_double


@dataclass(frozen=True)
class Tried:
    """What an experiment says about a choice: it holds, it is refuted, or nothing, and why."""

    outcome: Literal["holds", "refuted", "undecided"]
    reason: str = ""

    def __bool__(self) -> bool:
        return self.outcome == "holds"


class MeshExperiment:
    """A call with values, to be run under any number of choices.

    `way` is how partial inputs are split into pieces. Where floats may be double they are, so that rounding decides
    nothing.
    """

    def __init__(self, call: Call, way: str = "uneven") -> None:
        self.call = in_double(call)
        self.way = way

    @cached_property
    def expected(self) -> list[Any]:
        """The outputs of the whole call, then the inputs that it writes to."""
        call = self.call
        copies = [t.clone() for t in call.tensors]
        results = [*call.run(copies), *(copies[i] for i in call.mutated)]
        expected = [Expected(r, True, call.tensors) if isinstance(r, Tensor) else r for r in results]
        for output in expected:
            if isinstance(output, Expected):
                output.has_values = not facts(call.op).uninitialised
        return expected

    def check(self, choice: Choice) -> Tried:
        """Whether the rows of a choice hold together for this call."""
        with torch.no_grad(), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._check(choice)

    def _check(self, choice: Choice) -> Tried:
        call = self.call
        try:
            expected = self.expected
        except Exception as error:  # whatever the operator raises, nothing can be compared
            return Tried("undecided", f"{call.name} raises on the whole input: {first_line(error)}")
        shapes = [e.shape if isinstance(e, Expected) else None for e in expected]
        made = shapes[: len(choice.output_layouts)]
        outputs = (*choice.output_layouts, *(choice.input_layouts[i] for i in call.mutated))
        pieces = [
            self._cut(t, layout, i)
            for i, (t, layout) in enumerate(zip(call.tensors, choice.input_layouts, strict=True))
        ]
        local: list[list[Any]] = [[] for _ in range(choice.mesh.ranks)]
        for rank in range(choice.mesh.ranks):
            ranks = choice.group(rank) if choice.group_axes else [rank]
            if rank != ranks[0]:
                continue
            held = {member: [of_rank[member] for of_rank in pieces] for member in ranks}
            try:
                for member, results in zip(ranks, self._run(choice, held, made), strict=True):
                    local[member] = results
            except Exception as error:
                who = f"rank {rank} raises" if len(ranks) == 1 else f"ranks {ranks} raise"
                return Tried("refuted", f"{who}: {first_line(error)}")
        for number, (whole, layout) in enumerate(zip(expected, outputs, strict=True)):
            values = [of_rank[number] for of_rank in local]
            if not isinstance(whole, Expected) or layout is None:
                continue
            if (why := _disagrees(whole, values, layout)) is not None:
                return Tried("refuted", f"output {number} {why}")
        return Tried("holds")

    def _cut(self, tensor: Tensor, layout: Layout, number: int) -> list[Tensor]:
        """The local tensor of each rank; along partial axes pieces that reduce to the tensor."""
        mesh = layout.mesh
        wholes: dict[tuple[int, ...], Tensor] = {(): tensor}
        axes = [axis for axis, p in enumerate(layout.placements) if is_partial(p)]
        for axis in axes:
            reduction = layout.placements[axis].reduce_op
            wholes = {
                (*at, rank): piece
                for at, whole in wholes.items()
                for rank, piece in enumerate(
                    PartialPieces(
                        whole, mesh.shape[axis], self.way, 10 * number + 3 * axis + sum(at), True
                    ).of(reduction)
                )
            }
        reduced = tuple(parse_placement("R") if is_partial(p) else p for p in layout.placements)
        shards = Layout(mesh, reduced, layout.order)
        pieces = []
        for rank in range(mesh.ranks):
            at = mesh.coordinate(rank)
            piece = shards.piece(wholes[tuple(at[axis] for axis in axes)], rank)
            pieces.append(piece.clone(memory_format=torch.contiguous_format))
        return pieces

    def _run(self, choice: Choice, held: Mapping[int, list[Tensor]], made: Sequence[Any]) -> list[list[Any]]:
        """The outputs of one rank, or of several that communicate, given their local tensors."""
        call = self.call
        if choice.local is None:
            results = [call.runner(tensors) for tensors in held.values()]
        else:
            calls = [self._guarded.with_tensors(tensors) for tensors in held.values()]
            places = [choice.held(call, call.shapes, made, rank) for rank in held]
            if choice.group_axes:
                results = calls_together(choice.local, calls, places)
            else:
                results = [local_call(choice.local, calls[0], places[0].inputs, places[0].outputs)]
        return [
            [*flat_outputs(result), *(tensors[i] for i in call.mutated)]
            for result, tensors in zip(results, held.values(), strict=True)
        ]

    @cached_property
    def _guarded(self) -> Call:
        return replace(self.call, guarded=True)


def check_choice(call: Call, choice: Choice, way: str = "uneven") -> Tried:
    """Whether the rows of a choice hold together for a call with these values.

    >>> add = Call.of(torch.ops.aten.add.Tensor, torch.rand(4, 6), torch.rand(4, 6))
    >>> rows = Row.parse("S(0), S(0) -> S(0)"), Row.parse("P(sum), P(sum) -> P(sum)")
    >>> bool(check_choice(add, Choice(Mesh.parse("dp=2,tp=2"), rows)))
    True
    """
    return MeshExperiment(call, way).check(choice)


def _disagrees(whole: Expected, values: Sequence[Any], layout: Layout) -> str | None:
    """How the ranks' outputs, laid out so, differ from the output of the whole call."""
    mesh = layout.mesh
    for rank, value in enumerate(values):
        wanted = layout.local_shape(whole.shape, rank)
        if not isinstance(value, Tensor) or value.dtype != whole.dtype or tuple(value.shape) != wanted:
            got = f"{str(value.dtype)[6:]}{list(value.shape)}" if isinstance(value, Tensor) else repr(value)
            return f"is {got} on rank {rank}, not {str(whole.dtype)[6:]}{list(wanted)}"
    reduces = bool(layout.reductions)
    magnitude = 0.0
    if reduces and not whole.exact:
        finite = (np.abs(v[np.isfinite(v)]).max(initial=0) for v in map(array, values))
        magnitude = float(max(finite, default=0.0))
    replicas = [axis for axis, p in enumerate(layout.placements) if is_replicate(p)]
    for at in itertools.product(*(range(mesh.shape[axis]) for axis in replicas)):
        chosen = dict(zip(replicas, at, strict=True))
        of_replica = []
        for rank in range(mesh.ranks):
            place = [chosen.get(axis, i) for axis, i in enumerate(mesh.coordinate(rank))]
            of_replica.append(values[mesh.rank(place)])
        joined = array(layout.join(of_replica))
        if not whole.equals(joined, magnitude):
            return "differs from that of the whole call"
    return None
