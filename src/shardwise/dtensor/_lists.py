"""The steps of a redistribution on the pieces of all ranks at once, inside one process and without a process group.

Packing what a rank sends and ordering what it receives is the code of real ranks (`_steps`); only the collective in
between is simulated here, on lists. So a simulation moves the same bytes, and records the same collectives.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..placements import join, partial
from ..redistribution import Step
from . import _steps as steps
from ._record import Recorded


def run_step_on_all(
    pieces: Sequence[Tensor], step: Step, shape: Sequence[int], record: list[Recorded] | None = None
) -> list[Tensor]:
    """The pieces of all ranks after the step, given those before; a collective is added to `record`."""
    mesh, shape = step.before.mesh, tuple(shape)
    places = [mesh.coordinate(rank) for rank in range(mesh.ranks)]
    axis = steps.changed_axis(step)

    def each(function: Callable[..., Any], values: Sequence[Any]) -> list[Any]:
        return [
            function(value, step, axis, shape, place) for value, place in zip(values, places, strict=True)
        ]

    if step.kind == "slice":
        return each(steps._slice, pieces)
    if step.kind == "to_partial":
        return [
            steps._to_partial(piece, step, axis, place) for piece, place in zip(pieces, places, strict=True)
        ]
    everyone = list(range(mesh.ranks))
    groups = [everyone if step.kind == "permute" else steps._members(mesh, axis, place) for place in places]
    if step.kind == "all_reduce":
        sent = list(pieces)
        arrived = _all_reduce(sent, groups, step.before.placements[axis].reduce_op)
        after = arrived
    elif step.kind == "all_gather":
        dim = step.before.placements[axis].dim
        sent = each(steps._pad, pieces)
        arrived = [torch.cat([sent[rank] for rank in group], dim) for group in groups]
        after = each(steps._order_gathered, arrived)
    elif step.kind == "reduce_scatter":
        sent = each(steps._chunks, pieces)
        arrived = _reduce_scatter(sent, groups, step.before.placements[axis].reduce_op)
        after = each(steps._trim, arrived)
    elif step.kind == "all_to_all":
        parcels = each(steps._parcels, pieces)
        sent, arrived = _exchange(parcels, groups)
        after = each(steps._unpack, arrived)
    else:
        parcels = [
            steps._whole_parcel(piece, step, shape, place)
            for piece, place in zip(pieces, places, strict=True)
        ]
        sent, arrived = _exchange(parcels, groups)
        after = [
            steps._as_piece(piece, step, shape, place) for piece, place in zip(arrived, places, strict=True)
        ]
    if record is not None:
        kind = "all_to_all" if step.kind == "permute" else step.kind
        size = max(sent[0].nbytes, arrived[0].nbytes)
        record.append(Recorded(kind, size, len(groups[0])))
    return after


def _all_reduce(sent: Sequence[Tensor], groups: Sequence[Sequence[int]], reduction: str) -> list[Tensor]:
    reduced = {tuple(group): join([sent[rank] for rank in group], partial(reduction)) for group in groups}
    return [reduced[tuple(group)] for group in groups]


def _reduce_scatter(sent: Sequence[Tensor], groups: Sequence[Sequence[int]], reduction: str) -> list[Tensor]:
    whole = _all_reduce(sent, groups, reduction)
    return [
        tensor.chunk(len(group))[group.index(rank)]
        for rank, (tensor, group) in enumerate(zip(whole, groups, strict=True))
    ]


def _exchange(
    parcels: Sequence[tuple[Any, ...]], groups: Sequence[Sequence[int]]
) -> tuple[list[Tensor], list[Tensor]]:
    """What each rank sends and receives: from every member of its group, the part for this rank."""
    sent = [parcel[0] for parcel in parcels]
    parts = [parcel[0].split(parcel[1 : 1 + len(groups[0])]) for parcel in parcels]
    arrived = []
    for rank, group in enumerate(groups):
        got = torch.cat([parts[other][group.index(rank)] for other in group])
        expected = sum(parcels[rank][1 + len(group) :])
        assert got.numel() == expected, f"rank {rank} gets {got.numel()} elements and expects {expected}"
        arrived.append(got)
    return sent, arrived
