"""Running the steps of a redistribution on local tensors, with PyTorch's functional collectives.

Every step is the same three moves: pick out of the local tensor what has to be sent, one collective, put what
arrived in order. What to pick and how to order follows from the positions that layouts give each rank, so
uneven, empty and strided pieces need no cases of their own. Each move is a function of one rank's tensor and
coordinate, which is why the same code runs on real ranks and on simulated ones.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch.distributed._local_tensor import maybe_run_for_local_tensor
from torch.distributed.device_mesh import DeviceMesh

from ..layout import IDENTITY, Layout
from ..mesh import Mesh
from ..placements import is_partial, is_shard
from ..redistribute import Step


def run_step(local: Tensor, step: Step, device_mesh: DeviceMesh, shape: Sequence[int]) -> Tensor:
    """What this rank holds after the step, given what it holds before. `shape` is the whole tensor's."""
    place = _coordinate(device_mesh)
    shape = tuple(shape)
    axis = next((a for a in range(device_mesh.ndim) if _changes(step, a)), -1)
    if step.kind == "slice":
        return _slice(local, step, axis, shape, place)
    if step.kind == "to_partial":
        return _to_partial(local, step, axis, place)
    if step.kind == "all_reduce":
        reduction = step.before.placements[axis].reduce_op
        return _arrived(funcol.all_reduce(local.contiguous(), reduction, (device_mesh, axis)))
    if step.kind == "all_gather":
        dim = step.before.placements[axis].dim
        sent = _pad(local, step, axis, shape, place)
        gathered = _arrived(funcol.all_gather_single(sent, dim, (device_mesh, axis)))
        return _order_gathered(gathered, step, axis, shape, place)
    if step.kind == "reduce_scatter":
        reduction, dim = step.before.placements[axis].reduce_op, step.after.placements[axis].dim
        sent = _chunks(local, step, axis, shape, place)
        scattered = _arrived(funcol.reduce_scatter_single(sent, reduction, dim, (device_mesh, axis)))
        return _trim(scattered, step, axis, shape, place)
    if step.kind == "all_to_all":
        received = _exchange(_parcels(local, step, axis, shape, place), (device_mesh, axis))
        return _unpack(received, step, axis, shape, place)
    received = _exchange(_whole_parcel(local, step, shape, place), _whole_group(device_mesh))
    return _as_piece(received, step, shape, place)


def _coordinate(device_mesh: DeviceMesh) -> tuple[Any, ...]:
    """This rank's coordinate; on simulated ranks each entry stands for the values of all of them."""
    return tuple(device_mesh._sym_get_coordinate(axis) for axis in range(device_mesh.ndim))


def _exchange(parcels: tuple[Any, ...], group: Any) -> Tensor:
    sent, *counts = parcels
    ranks = len(counts) // 2
    return _arrived(funcol.all_to_all_single(sent, counts[ranks:], counts[:ranks], group))


def _arrived(tensor: Tensor) -> Tensor:
    return tensor.wait() if isinstance(tensor, funcol.AsyncCollectiveTensor) else tensor


def _changes(step: Step, axis: int) -> bool:
    return step.before.placements[axis] != step.after.placements[axis]


def _whole_group(device_mesh: DeviceMesh) -> Any:
    """The process group of all ranks of the mesh."""
    if device_mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    return device_mesh._flatten()


# -- positions


def _members(mesh: Mesh, axis: int, place: Sequence[int]) -> list[int]:
    """The ranks that differ from this one along one axis alone, in order."""
    return [_rank(mesh, (*place[:axis], i, *place[axis + 1 :])) for i in range(mesh.shape[axis])]


def _rank(mesh: Mesh, place: Sequence[int]) -> int:
    return _count(mesh, range(mesh.ndim), place)


def _take(tensor: Tensor, dim: int, wanted: np.ndarray) -> Tensor:
    """The slices at the given positions: the tensor itself or a view of a range where that is enough."""
    length = len(wanted)
    if length == tensor.shape[dim] and np.array_equal(wanted, np.arange(length)):
        return tensor
    if length and np.array_equal(wanted, np.arange(wanted[0], wanted[0] + length)):
        return tensor.narrow(dim, int(wanted[0]), length)
    return tensor.index_select(dim, torch.as_tensor(wanted, dtype=torch.int64, device=tensor.device))


def _held(layout: Layout, dim: int, shape: Sequence[int], ranks: Sequence[int]) -> list[np.ndarray]:
    return [layout.positions(dim, shape[dim], rank) for rank in ranks]


# -- local steps


@maybe_run_for_local_tensor
def _slice(local: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]) -> Tensor:
    dim, rank = step.after.placements[axis].dim, _rank(step.before.mesh, place)
    before, after = _held(step.before, dim, shape, [rank])[0], _held(step.after, dim, shape, [rank])[0]
    return _take(local, dim, np.searchsorted(before, after)).clone(memory_format=torch.contiguous_format)


@maybe_run_for_local_tensor
def _to_partial(local: Tensor, step: Step, axis: int, place: tuple[int, ...]) -> Tensor:
    """The whole value on the first rank for sum and product, copies otherwise: exact for every dtype."""
    reduction = step.after.placements[axis].reduce_op
    if reduction in IDENTITY and place[axis] > 0:
        return torch.full_like(local, IDENTITY[reduction])
    return local


# -- all-gather


@maybe_run_for_local_tensor
def _pad(local: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]) -> Tensor:
    dim = step.before.placements[axis].dim
    first = _members(step.before.mesh, axis, place)[0]
    missing = len(step.before.positions(dim, shape[dim], first)) - local.shape[dim]
    if missing:
        padding = list(local.shape)
        padding[dim] = missing
        local = torch.cat([local, local.new_zeros(padding)], dim)
    return local.contiguous()


@maybe_run_for_local_tensor
def _order_gathered(
    gathered: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]
) -> Tensor:
    dim = step.before.placements[axis].dim
    held = _held(step.before, dim, shape, _members(step.before.mesh, axis, place))
    arrived = np.concatenate([i * len(held[0]) + np.arange(len(piece)) for i, piece in enumerate(held)])
    return _take(gathered, dim, arrived[np.argsort(np.concatenate(held))]).contiguous()


# -- reduce-scatter


@maybe_run_for_local_tensor
def _chunks(local: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]) -> Tensor:
    """One equal chunk per rank, in order; what pads the shorter ones is never looked at."""
    dim, mesh = step.after.placements[axis].dim, step.before.mesh
    before = step.before.positions(dim, shape[dim], _rank(mesh, place))
    wanted = [
        np.searchsorted(before, piece) for piece in _held(step.after, dim, shape, _members(mesh, axis, place))
    ]
    padded = [np.pad(piece, (0, len(wanted[0]) - len(piece))) for piece in wanted]
    return _take(local, dim, np.concatenate(padded)).contiguous()


@maybe_run_for_local_tensor
def _trim(scattered: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]) -> Tensor:
    dim = step.after.placements[axis].dim
    length = len(step.after.positions(dim, shape[dim], _rank(step.after.mesh, place)))
    return scattered.narrow(dim, 0, length).contiguous()


# -- all-to-all: rank r sends rank q what r held before and q holds after


@maybe_run_for_local_tensor
def _parcels(
    local: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]
) -> tuple[Any, ...]:
    """Everything to send, flat and in order of receivers; then how many elements go to each member of the
    group, and how many come from each. (Simulated ranks want no list inside the tuple.)
    """
    dim, members = step.after.placements[axis].dim, _members(step.before.mesh, axis, place)
    before = step.before.positions(dim, shape[dim], members[place[axis]])
    parcels = []
    for piece in _held(step.after, dim, shape, members):
        shared = np.intersect1d(before, piece, assume_unique=True)
        parcels.append(_take(local, dim, np.searchsorted(before, shared)).reshape(-1))
    incoming = [int(np.prod(block)) for block in _incoming(step, axis, shape, place)]
    return (torch.cat(parcels), *(parcel.numel() for parcel in parcels), *incoming)


def _incoming(step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]) -> list[list[int]]:
    """The shapes of what each member of the group sends to this rank."""
    members = _members(step.before.mesh, axis, place)
    own = members[place[axis]]
    blocks = []
    for member in members:
        block = list(step.after.local_shape(shape, own))
        for dim in {step.before.placements[axis].dim, step.after.placements[axis].dim}:
            theirs = step.before.positions(dim, shape[dim], member)
            ours = step.after.positions(dim, shape[dim], own)
            block[dim] = len(np.intersect1d(theirs, ours, assume_unique=True))
        blocks.append(block)
    return blocks


@maybe_run_for_local_tensor
def _unpack(
    received: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]
) -> Tensor:
    dim, members = step.before.placements[axis].dim, _members(step.before.mesh, axis, place)
    blocks = _incoming(step, axis, shape, place)
    parts = received.split([int(np.prod(block)) for block in blocks])
    ours = step.after.positions(dim, shape[dim], members[place[axis]])
    arrived = [np.intersect1d(p, ours, assume_unique=True) for p in _held(step.before, dim, shape, members)]
    joined = torch.cat([part.reshape(block) for part, block in zip(parts, blocks, strict=True)], dim)
    return _take(joined, dim, np.argsort(np.concatenate(arrived))).contiguous()


# -- permute: every rank sends its whole piece to one rank


@maybe_run_for_local_tensor
def _whole_parcel(
    local: Tensor, step: Step, shape: tuple[int, ...], place: tuple[int, ...]
) -> tuple[Any, ...]:
    mesh = step.before.mesh
    rank, sources = _rank(mesh, place), permute_sources(step)
    outgoing, incoming = [0] * mesh.ranks, [0] * mesh.ranks
    outgoing[sources.index(rank)] = local.numel()
    incoming[sources[rank]] = int(np.prod(step.after.local_shape(shape, rank)))
    return (local.reshape(-1), *outgoing, *incoming)


@maybe_run_for_local_tensor
def _as_piece(received: Tensor, step: Step, shape: tuple[int, ...], place: tuple[int, ...]) -> Tensor:
    return received.reshape(step.after.local_shape(shape, _rank(step.after.mesh, place)))


def permute_sources(step: Step) -> list[int]:
    """For each rank the rank whose piece it takes over in a permute."""
    ranks = range(step.before.mesh.ranks)
    holders = {_role(step.before, step.after, rank): rank for rank in ranks}
    return [holders[_role(step.after, step.before, rank)] for rank in ranks]


def _role(layout: Layout, other: Layout, rank: int) -> tuple[Any, ...]:
    """Which piece, which summand and which replica a rank holds: different for every rank.

    Summands and replicas are counted first along the axes that keep their placement in the other layout,
    so that nothing moves along those.
    """
    place = layout.mesh.coordinate(rank)
    dims = sorted({*layout.sharded_dims, *other.sharded_dims})
    pieces = [_count(layout.mesh, layout.axes(dim), place) for dim in dims]
    spare: dict[str, tuple[list[int], list[int]]] = {}
    for axis, placement in enumerate(layout.placements):
        if not is_shard(placement):
            name = placement.reduce_op if is_partial(placement) else ""
            kept, moved = spare.setdefault(name, ([], []))
            (kept if other.placements[axis] == placement else moved).append(axis)
    counted = [
        (name, *(place[axis] for axis in kept), _count(layout.mesh, moved, place))
        for name, (kept, moved) in sorted(spare.items())
    ]
    return (*pieces, *counted)


def _count(mesh: Mesh, axes: Sequence[int], place: Sequence[int]) -> int:
    """The position along several axes taken as one, the first of them outermost."""
    index = 0
    for axis in axes:
        index = index * mesh.shape[axis] + place[axis]
    return index
