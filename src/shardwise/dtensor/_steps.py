"""Running the steps of a redistribution on local tensors, with PyTorch's functional collectives.

Every step has the same three parts: select from the local tensor what has to be sent, one collective, put what
arrived in order. What to select and how to order it follows from the positions that layouts assign to each rank, so
uneven, empty and strided pieces need no cases of their own. Each part is a function of one rank's tensor and
coordinate, which is why the same code runs on real ranks and on simulated ones.
"""

import math
from collections.abc import Sequence
from operator import getitem
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, fx
from torch.distributed._local_tensor import maybe_run_for_local_tensor
from torch.distributed.device_mesh import DeviceMesh

from ..layout import IDENTITY, Layout, Run, common, length
from ..mesh import Mesh
from ..placements import is_partial, is_shard
from ..redistribution import Step
from ._versions import all_gather_single, reduce_scatter_single

_C10D = torch.ops._c10d_functional
WAIT = _C10D.wait_tensor.default

# Collectives of one tensor, and of several as one.
_JOINED = {
    _C10D.all_gather_into_tensor.default: _C10D.all_gather_into_tensor_coalesced.default,
    _C10D.reduce_scatter_tensor.default: _C10D.reduce_scatter_tensor_coalesced.default,
    _C10D.all_reduce.default: _C10D.all_reduce_coalesced.default,
}


def run_step(local: Tensor, step: Step, device_mesh: DeviceMesh, shape: Sequence[int]) -> Tensor:
    """This rank's piece after the step, given its piece before. `shape` is the whole tensor's."""
    place = coordinate(device_mesh)
    shape = tuple(shape)
    axis = changed_axis(step)
    if step.kind == "slice":
        return _slice(local, step, axis, shape, place)
    if step.kind == "to_partial":
        return _to_partial(local, step, axis, place)
    if step.kind == "all_reduce":
        reduction = step.before.placements[axis].reduce_op
        # As a vector: Inductor has some sums as vectors whatever their shape is, and collectives take them as they are.
        reduced = _arrived(funcol.all_reduce(local.contiguous().view(-1), reduction, (device_mesh, axis)))
        return reduced.view(local.shape)
    if step.kind == "all_gather":
        dim = step.before.placements[axis].dim
        sent = _pad(local, step, axis, shape, place)
        gathered = _gathered(sent, dim, (device_mesh, axis))
        return _order_gathered(gathered, step, axis, shape, place)
    if step.kind == "reduce_scatter":
        reduction = step.before.placements[axis].reduce_op
        sent = _chunks(local, step, axis, shape, place)
        scattered = _arrived(reduce_scatter_single(sent, reduction, 0, (device_mesh, axis)))
        return _trim(scattered, step, axis, shape, place)
    if step.kind == "all_to_all":
        received = _exchange(_parcels(local, step, axis, shape, place), (device_mesh, axis))
        return _unpack(received, step, axis, shape, place)
    received = _exchange(_whole_parcel(local, step, shape, place), _whole_group(device_mesh))
    return _as_piece(received, step, shape, place)


def before_last_wait(nodes: Sequence[fx.Node]) -> int:
    """How many of the traced nodes of a redistribution come before its last collective is waited for."""
    waits = [place for place, node in enumerate(nodes) if node.target is WAIT]
    return waits[-1] if waits else len(nodes)


def join_collectives(graph: fx.Graph, nodes: Sequence[fx.Node]) -> None:
    """Have the collectives among the traced nodes of several redistributions run as one, begun where the last was."""
    begun = [node for node in nodes if node.target in _JOINED]
    if len(begun) < 2:
        return
    first, last = begun[0], begun[-1]
    assert all((node.target, node.args[1:]) == (first.target, first.args[1:]) for node in begun)
    with graph.inserting_before(last):
        given = [node.args[0] for node in begun]
        joined = graph.call_function(_JOINED[first.target], (given, *first.args[1:]))
        arriving = [graph.call_function(getitem, (joined, place)) for place in range(len(begun))]
    joined.meta |= last.meta | {"val": [node.meta["val"] for node in begun]}
    for node, part in zip(begun, arriving, strict=True):
        part.meta |= node.meta
        node.replace_all_uses_with(part)
        graph.erase_node(node)


def coordinate(device_mesh: DeviceMesh) -> tuple[Any, ...]:
    """This rank's coordinate; on simulated ranks each entry stands for the values of all of them."""
    return tuple(device_mesh._sym_get_coordinate(axis) for axis in range(device_mesh.ndim))


def _exchange(parcels: tuple[Any, ...], group: Any) -> Tensor:
    sent, *counts = parcels
    ranks = len(counts) // 2
    return _arrived(funcol.all_to_all_single(sent, counts[ranks:], counts[:ranks], group))


def _gathered(sent: Tensor, dim: int, group: Any) -> Tensor:
    """The pieces of all ranks joined along a dim; without a copy if every dim before it is 1."""
    if any(size != 1 for size in sent.shape[:dim]):
        return _arrived(all_gather_single(sent, dim, group))
    joined = _arrived(all_gather_single(sent.reshape(sent.shape[dim:]), 0, group))
    return joined.view(*sent.shape[:dim], *joined.shape)


def _arrived(tensor: Tensor) -> Tensor:
    return tensor.wait() if isinstance(tensor, funcol.AsyncCollectiveTensor) else tensor


def changed_axis(step: Step) -> int:
    """The axis whose placement a step changes; -1 for a permute within a dim."""
    placements = zip(step.before.placements, step.after.placements, strict=True)
    return next((axis for axis, (before, after) in enumerate(placements) if before != after), -1)


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


def _held(layout: Layout, dim: int, shape: Sequence[int], ranks: Sequence[int]) -> list[list[Run]]:
    return [layout.runs(dim, shape[dim], rank) for rank in ranks]


def _where(held: Sequence[Run], wanted: Sequence[Run]) -> list[Run]:
    """Where the wanted positions lie in a tensor that holds these."""
    found, passed = [], 0
    for start, stop in held:
        found += [
            (first - start + passed, last - start + passed) for first, last in common([(start, stop)], wanted)
        ]
        passed += stop - start
    return found


def _take(tensor: Tensor, dim: int, runs: Sequence[Run]) -> Tensor:
    """Ranges of a tensor, joined: itself or a view where that is enough."""
    joined: list[Run] = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    if joined == [(0, tensor.shape[dim])]:
        return tensor
    parts = [tensor.narrow(dim, start, stop - start) for start, stop in joined or [(0, 0)]]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _in_order(
    tensor: Tensor, dim: int, arrived: Sequence[Sequence[Run]], stride: int | None = None
) -> Tensor:
    """A tensor that holds these positions one list after the other, put in ascending order.

    `stride` is how far apart the lists begin, if they are padded to one length.
    """
    pieces, begin = [], 0
    for number, runs in enumerate(arrived):
        begin = begin if stride is None else number * stride
        for start, stop in runs:
            pieces.append((start, (begin, begin + stop - start)))
            begin += stop - start
    return _on_its_own(_take(tensor, dim, [where for _, where in sorted(pieces)]))


def _on_its_own(tensor: Tensor) -> Tensor:
    """Contiguous, and without the padding that it was cut out of."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def _tile(pieces: Sequence[Sequence[Run]], size: int) -> bool:
    """Whether the pieces are equal and follow each other from the first position to the last."""
    each, left = divmod(size, len(pieces))
    return not left and all(list(runs) == [(i * each, (i + 1) * each)] for i, runs in enumerate(pieces))


def _stacked(tensor: Tensor, dim: int, pieces: int) -> Tensor:
    """Equal pieces along a dim, one after the other in memory: one copy for all, none along the first dim."""
    return tensor.unflatten(dim, (pieces, -1)).movedim(dim, 0).flatten(0, 1).contiguous()


def _padded(tensor: Tensor, dim: int, length: int) -> Tensor:
    missing = list(tensor.shape)
    missing[dim] = length - tensor.shape[dim]
    return torch.cat([tensor, tensor.new_zeros(missing)], dim) if missing[dim] else tensor


# -- local steps


@maybe_run_for_local_tensor
def _slice(local: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]) -> Tensor:
    dim, rank = step.after.placements[axis].dim, _rank(step.before.mesh, place)
    before, after = (layout.runs(dim, shape[dim], rank) for layout in (step.before, step.after))
    return _take(local, dim, _where(before, after)).clone(memory_format=torch.contiguous_format)


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
    return _padded(local, dim, length(step.before.runs(dim, shape[dim], first))).contiguous()


@maybe_run_for_local_tensor
def _order_gathered(
    gathered: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]
) -> Tensor:
    dim = step.before.placements[axis].dim
    held = _held(step.before, dim, shape, _members(step.before.mesh, axis, place))
    return _in_order(gathered, dim, held, length(held[0]))


# -- reduce-scatter


@maybe_run_for_local_tensor
def _chunks(local: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]) -> Tensor:
    """One equal chunk per rank, in order, joined along the first dim whichever is scattered: sent as they lie."""
    dim, mesh = step.after.placements[axis].dim, step.before.mesh
    before = step.before.runs(dim, shape[dim], _rank(mesh, place))
    pieces = [_where(before, piece) for piece in _held(step.after, dim, shape, _members(mesh, axis, place))]
    if _tile(pieces, local.shape[dim]):
        return _stacked(local, dim, len(pieces))
    longest = length(pieces[0])
    if dim == 0 and all(length(piece) == longest for piece in pieces):
        return _take(local, dim, [run for piece in pieces for run in piece]).contiguous()
    return torch.cat([_padded(_take(local, dim, piece), dim, longest) for piece in pieces])


@maybe_run_for_local_tensor
def _trim(scattered: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]) -> Tensor:
    dim = step.after.placements[axis].dim
    size = length(step.after.runs(dim, shape[dim], _rank(step.after.mesh, place)))
    return _on_its_own(_take(scattered, dim, [(0, size)]))


# -- all-to-all: rank r sends rank q what r held before and q holds after


@maybe_run_for_local_tensor
def _parcels(
    local: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]
) -> tuple[Any, ...]:
    """Everything to send, flat and in order of receivers; then how many elements go to each member of the
    group, and how many come from each. (Simulated ranks want no list inside the tuple.)
    """
    dim, members = step.after.placements[axis].dim, _members(step.before.mesh, axis, place)
    before = step.before.runs(dim, shape[dim], members[place[axis]])
    pieces = [_where(before, piece) for piece in _held(step.after, dim, shape, members)]
    incoming = [math.prod(block) for block in _incoming(step, axis, shape, place)]
    if _tile(pieces, local.shape[dim]):
        counts = [local.numel() // len(pieces)] * len(pieces)
        return (_stacked(local, dim, len(pieces)).view(-1), *counts, *incoming)
    parcels = [_take(local, dim, piece).reshape(-1) for piece in pieces]
    return (torch.cat(parcels), *(parcel.numel() for parcel in parcels), *incoming)


def _incoming(step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]) -> list[list[int]]:
    """The shapes of what each member of the group sends to this rank."""
    members = _members(step.before.mesh, axis, place)
    own = members[place[axis]]
    blocks = [list(step.after.local_shape(shape, own)) for _ in members]
    for dim in {step.before.placements[axis].dim, step.after.placements[axis].dim}:
        ours = step.after.runs(dim, shape[dim], own)
        for block, theirs in zip(blocks, _held(step.before, dim, shape, members), strict=True):
            block[dim] = length(common(theirs, ours))
    return blocks


@maybe_run_for_local_tensor
def _unpack(
    received: Tensor, step: Step, axis: int, shape: tuple[int, ...], place: tuple[int, ...]
) -> Tensor:
    dim, members = step.before.placements[axis].dim, _members(step.before.mesh, axis, place)
    blocks = _incoming(step, axis, shape, place)
    ours = step.after.runs(dim, shape[dim], members[place[axis]])
    arrived = [common(theirs, ours) for theirs in _held(step.before, dim, shape, members)]
    if all(block == blocks[0] for block in blocks):
        joined = received.view(len(blocks), *blocks[0]).movedim(0, dim).flatten(dim, dim + 1)
    elif all(size == 1 for size in blocks[0][:dim]):
        whole = [*blocks[0][:dim], sum(block[dim] for block in blocks), *blocks[0][dim + 1 :]]
        joined = received.view(whole)
    else:
        parts = received.split([math.prod(block) for block in blocks])
        joined = torch.cat([part.reshape(block) for part, block in zip(parts, blocks, strict=True)], dim)
    return _in_order(joined, dim, arrived)


# -- permute: every rank sends its whole piece to one rank


@maybe_run_for_local_tensor
def _whole_parcel(
    local: Tensor, step: Step, shape: tuple[int, ...], place: tuple[int, ...]
) -> tuple[Any, ...]:
    mesh = step.before.mesh
    rank, sources = _rank(mesh, place), permute_sources(step)
    outgoing, incoming = [0] * mesh.ranks, [0] * mesh.ranks
    outgoing[sources.index(rank)] = local.numel()
    incoming[sources[rank]] = math.prod(step.after.local_shape(shape, rank))
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
