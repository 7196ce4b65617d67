"""The local tensors of the ranks along one mesh axis, exactly as DTensor splits them.

A plain shard is split as by `torch.chunk`: every shard has the size of the first until the dim is exhausted, so 9
on 4 ranks is 3, 3, 3, 0. A strided shard with split factor f splits the dim into f blocks, each block like a
plain shard, and gives rank r the r-th part of every block.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement

from ..errors import UsageError
from ._text import is_partial, is_replicate, is_shard, placement_text


def shard_sizes(size: int, ranks: int) -> list[int]:
    """The sizes of the plain shards of a dim."""
    chunk = -(-size // ranks)
    return [min(chunk, max(0, size - chunk * rank)) for rank in range(ranks)]


def piece_sizes(size: int, placement: Placement, ranks: int) -> list[int]:
    """The sizes of the shards of a dim, plain or strided."""
    indices = _strided_indices(size, placement, ranks)
    return shard_sizes(size, ranks) if indices is None else [len(index) for index in indices]


def split(tensor: Tensor, placement: Placement, ranks: int) -> list[Tensor]:
    """The local tensor of each rank. Shards are views; replicas are the tensor itself.

    A partial can be split in many ways, none of them canonical, so it is refused here.
    """
    if is_replicate(placement):
        return [tensor] * ranks
    if not is_shard(placement):
        raise UsageError(f"{placement_text(placement)} does not say how to split a tensor")
    _require_dim(tensor, placement)
    indices = _strided_indices(tensor.shape[placement.dim], placement, ranks)
    if indices is not None:
        return [tensor.index_select(placement.dim, index) for index in indices]
    return list(tensor.split_with_sizes(shard_sizes(tensor.shape[placement.dim], ranks), placement.dim))


def join(pieces: Sequence[Tensor], placement: Placement) -> Tensor:
    """The global tensor of these local tensors: `join(split(x, p, n), p)` is x."""
    if is_replicate(placement):
        return pieces[0]
    if is_partial(placement):
        return _reduce(pieces, placement.reduce_op)
    _require_dim(pieces[0], placement)
    joined = torch.cat(list(pieces), placement.dim)
    indices = _strided_indices(joined.shape[placement.dim], placement, len(pieces))
    if indices is None:
        return joined
    return joined.index_select(placement.dim, torch.argsort(torch.cat(indices)))


def _strided_indices(size: int, placement: Placement, ranks: int) -> list[Tensor] | None:
    """Per rank, the positions it holds under a strided shard; None for a plain shard."""
    factor = getattr(placement, "split_factor", None)
    if factor is None:
        return None
    blocks = torch.arange(size).split(shard_sizes(size, factor))
    parts = [block.split(shard_sizes(len(block), ranks)) for block in blocks]
    return [torch.cat([part[rank] for part in parts]) for rank in range(ranks)]


def _reduce(pieces: Sequence[Tensor], reduction: str) -> Tensor:
    stacked = torch.stack(list(pieces))
    if reduction == "sum":
        return stacked.sum(0, dtype=stacked.dtype)
    if reduction == "avg":
        return stacked.mean(0)
    if reduction == "max":
        return stacked.amax(0)
    if reduction == "min":
        return stacked.amin(0)
    return stacked.prod(0, dtype=stacked.dtype)


def _require_dim(tensor: Tensor, placement: Placement) -> None:
    if placement.dim >= tensor.ndim:
        raise UsageError(
            f"{placement_text(placement)} shards dim {placement.dim}, "
            f"but the tensor of shape {tuple(tensor.shape)} has {tensor.ndim} dims"
        )
