"""`transfer`: moves a sharded tensor to another mesh: of another shape, on other ranks, on other devices.

Every rank sends parts of its piece directly to the ranks that need them, and receives its new piece. No rank ever holds
more than its old piece, its new piece and one or two parcels.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from ..dtensor import layout_of, redistribute
from ..errors import UsageError, require
from ..layout import Layout
from ..mesh import Mesh
from ..placements import is_partial, parse_placement, shard
from ..redistribution import Box, Parcel, held, parcels, views
from ._pieces import as_dtensor

Target = Layout | Sequence[Placement] | str

_PARCEL_BYTES = 16 << 20


@overload
def transfer(tensor: DTensor, mesh: DeviceMesh, placements: Target) -> DTensor: ...
@overload
def transfer(
    tensor: Mapping[str, Any],
    mesh: DeviceMesh,
    placements: Target | Mapping[str, Target] | Callable[[str], Target],
) -> dict[str, Any]: ...
def transfer(tensor: Any, mesh: DeviceMesh, placements: Any) -> Any:
    """The tensor on another mesh, in the layout `placements`: a layout's text, placements, or a `Layout`.

    Every rank of either mesh must call it; a rank that is in neither may. The tensor may also be a state dict:
    `placements` are then for all its DTensors, or by name, as a dict or a function; other values are left unchanged.
    """
    if isinstance(tensor, DTensor):
        return _transferred(tensor, mesh, _target(placements, mesh))
    if not isinstance(tensor, Mapping):
        raise UsageError(f"cannot transfer {type(tensor).__name__}: give a DTensor or a dict of them")
    return {
        name: _transferred(value, mesh, _target(_named(placements, name), mesh))
        if isinstance(value, DTensor)
        else transfer(value, mesh, placements)
        if isinstance(value, Mapping)
        else value
        for name, value in tensor.items()
    }


def transfer_parcels(tensor: DTensor, mesh: DeviceMesh, placements: Target) -> list[Parcel]:
    """What a transfer sends: every parcel, with who sends it to whom."""
    source, target = _without_partials(layout_of(tensor), tensor.ndim), _target(placements, mesh)
    return _plan(tensor, source, mesh, target)


def _transferred(tensor: DTensor, mesh: DeviceMesh, target: Layout) -> DTensor:
    source = _without_partials(layout_of(tensor), tensor.ndim)
    if source != layout_of(tensor) and tensor.device_mesh.get_coordinate() is not None:
        tensor = redistribute(tensor, source)
    found = _plan(tensor, source, mesh, target)
    piece = tensor.to_local().detach()
    device = mesh.device_type
    place = _place(mesh)
    shape = tuple(tensor.shape)
    local = (0,) if place is None else target.local_shape(shape, place)
    made = torch.empty(local, dtype=tensor.dtype, device=device)
    here, rank = _place(tensor.device_mesh), dist.get_rank()
    has = None if here is None else held(source, shape, here)
    needs = None if place is None else held(target, shape, place)
    ours = [parcel for parcel in found if rank in (parcel.sender, parcel.receiver)]
    for parcel in (p for p in ours if p.sender == p.receiver):
        assert has is not None and needs is not None
        _put(made, needs, parcel.box, _taken(piece, has, parcel.box))
    for batch in _rounds([p for p in ours if p.sender != p.receiver]):
        _exchange(batch, rank, piece, has, made, needs)
    return as_dtensor(made, target, mesh, shape)


def _exchange(
    batch: Sequence[Parcel], rank: int, piece: Tensor, has: Box | None, made: Tensor, needs: Box | None
) -> None:
    """Send and receive some parcels, all at once."""
    waiting, arriving = [], []
    for parcel in batch:
        if parcel.sender == rank:
            assert has is not None
            waiting.append(dist.P2POp(dist.isend, _taken(piece, has, parcel.box), parcel.receiver))
        else:
            assert needs is not None
            space = _space(made, needs, parcel.box, piece.device)
            arriving.append((parcel, space))
            waiting.append(dist.P2POp(dist.irecv, space, parcel.sender))
    for request in dist.batch_isend_irecv(waiting):
        request.wait()
    for parcel, space in arriving:
        assert needs is not None
        if space.untyped_storage().data_ptr() != made.untyped_storage().data_ptr():
            _put(made, needs, parcel.box, space)


def _rounds(ours: Sequence[Parcel]) -> list[list[Parcel]]:
    """The parcels a few at a time. Both ends of a pair must take the same ones, so each pair's go one by one."""
    turns: dict[tuple[int, int], int] = {}
    rounds: dict[int, list[Parcel]] = {}
    for parcel in ours:
        pair = (parcel.sender, parcel.receiver)
        turn = turns.get(pair, 0)
        turns[pair] = turn + 1
        rounds.setdefault(turn, []).append(parcel)
    return [rounds[turn] for turn in sorted(rounds)]


def _plan(tensor: DTensor, source: Layout, mesh: DeviceMesh, target: Layout) -> list[Parcel]:
    limit = max(1, _PARCEL_BYTES // tensor.dtype.itemsize)
    ranks, new_ranks = _ranks(tensor.device_mesh), _ranks(mesh)
    return parcels(tuple(tensor.shape), source, ranks, target, new_ranks, limit)


def _taken(piece: Tensor, has: Box, box: Box) -> Tensor:
    parts = list(views(piece, has, box))
    if len(parts) == 1:
        return parts[0][0].contiguous()
    taken = piece.new_empty(_sizes(box))
    for view, where in parts:
        taken[where].copy_(view)
    return taken


def _space(made: Tensor, needs: Box, box: Box, device: torch.device) -> Tensor:
    """Where to receive a box: right where it belongs, if that is one block on the device that sends."""
    (view, _), *others = views(made, needs, box)
    if not others and view.is_contiguous() and made.device == device:
        return view
    return torch.empty(_sizes(box), dtype=made.dtype, device=device)


def _put(made: Tensor, needs: Box, box: Box, parcel: Tensor) -> None:
    for view, where in views(made, needs, box):
        view.copy_(parcel[where])


def _sizes(box: Box) -> list[int]:
    return [sum(stop - start for start, stop in runs) for runs in box]


def _without_partials(layout: Layout, ndim: int) -> Layout:
    """The layout with partials reduced: scattered where there is a dim to scatter over."""
    if not layout.reductions:
        return layout
    done = shard(0) if ndim else parse_placement("R")
    return Layout(layout.mesh, tuple(done if is_partial(p) else p for p in layout.placements))


def _target(placements: Target, mesh: DeviceMesh) -> Layout:
    require(mesh, DeviceMesh, "mesh", "a DeviceMesh")
    on = Mesh.from_device_mesh(mesh)
    layout = Layout.of(placements, on)
    if layout.mesh.shape != on.shape:
        raise UsageError(f"layout {layout} is for mesh {layout.mesh}, but the tensor is moved to {on}")
    if layout.reductions:
        raise UsageError(f"a tensor cannot be transferred to {layout}: use R and S only")
    return layout


def _named(placements: Any, name: str) -> Target:
    if isinstance(placements, Mapping):
        if name not in placements:
            raise UsageError(f"there are no placements for {name!r}: add them")
        return placements[name]
    if callable(placements):
        return placements(name)
    return placements


def _ranks(mesh: DeviceMesh) -> list[int]:
    return mesh.mesh.flatten().tolist()


def _place(mesh: DeviceMesh) -> int | None:
    """This process's place in the mesh, counted row by row; None if it is not in it."""
    ranks = _ranks(mesh)
    return ranks.index(dist.get_rank()) if dist.get_rank() in ranks else None
