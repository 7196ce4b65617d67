"""The local form `lookup`: indices into a sharded dim.

Reading, a rank gives what it holds and zero for the rest, so that the ranks' results add up to the whole. Writing, it
leaves out what lies outside its piece. Writes that belong elsewhere go to a slot behind the piece, cut off afterwards.
"""

from typing import Any

import torch
from torch import Tensor

from ..calls import Call
from ._operator import Operator, Run
from ._piece import Held, Piece
from ._sizes import select_backward


def _here(index: Tensor, piece: Piece, dim: int) -> tuple[Tensor, Tensor]:
    """Which indices lie in the piece, and all of them counted from its start."""
    index = index - piece.offset[dim]
    return (index >= 0) & (index < piece.local[dim]), index


def _from_start(index: Tensor, piece: Piece, dim: int) -> Tensor:
    """Indices of advanced indexing may be counted from the end."""
    return torch.where(index < 0, index + piece.shape[dim], index)


def _embedding(call: Call, held: Held) -> Any:
    weight, piece = call["weight"], held["weight"]
    inside, index = _here(call["indices"], piece, 0)
    if not piece.local[0]:
        return weight.new_zeros((*index.shape, weight.shape[1]))
    return call(indices=index.where(inside, 0)).where(inside.unsqueeze(-1), 0)


def _gather(call: Call, held: Held) -> Any:
    whole, piece = call["self"], held["self"]
    dim = call["dim"] % max(whole.ndim, 1)
    inside, index = _here(call["index"], piece, dim)
    if not piece.local[dim]:
        return whole.new_zeros(index.shape)
    return call(index=index.where(inside, 0)).where(inside, 0)


def _index_select(call: Call, held: Held) -> Any:
    whole, piece = call["self"], held["self"]
    dim = call["dim"] % max(whole.ndim, 1)
    inside, index = _here(call["index"], piece, dim)
    if not piece.local[dim]:
        return whole.new_zeros((*whole.shape[:dim], index.numel(), *whole.shape[dim + 1 :]))
    chosen = call(index=index.where(inside, 0))
    return chosen.where(inside.reshape(-1, *[1] * (whole.ndim - dim - 1)), 0)


def _select(call: Call, held: Held) -> Any:
    whole, piece = call["self"], held["self"]
    dim = call["dim"] % whole.ndim
    index = call["index"] % piece.shape[dim] - piece.offset[dim]
    if 0 <= index < piece.local[dim]:
        return call(index=index)
    return whole.new_zeros((*whole.shape[:dim], *whole.shape[dim + 1 :]))


def _index(call: Call, held: Held) -> Any:
    """Advanced indexing: an element is held here if every index into a sharded dim is."""
    whole, piece, indices = call["self"], held["self"], list(call["indices"])
    inside: Tensor | None = None
    for dim, index in enumerate(indices):
        if index is not None and piece.cuts(dim):
            found, index = _here(_from_start(index, piece, dim), piece, dim)
            indices[dim] = index.where(found, 0)
            inside = found if inside is None else inside & found
    if inside is None:
        return call()
    given = [dim for dim, index in enumerate(indices) if index is not None]
    adjacent = given == list(range(given[0], given[-1] + 1))
    where = torch.broadcast_shapes(*(indices[dim].shape for dim in given))
    kept = [size for dim, size in enumerate(whole.shape) if dim not in given]
    start = given[0] if adjacent else 0
    if any(whole.shape[dim] == 0 for dim in given):
        return whole.new_zeros((*kept[:start], *where, *kept[start:]))
    behind = len(kept) - start
    return call(indices=indices).where(inside.expand(where).reshape((*where, *[1] * behind)), 0)


def _index_put(call: Call, held: Held) -> Any:
    whole, piece, indices = call["self"], held["self"], list(call["indices"])
    cut = [dim for dim, index in enumerate(indices) if index is not None and piece.cuts(dim)]
    for dim in cut:
        inside, index = _here(_from_start(indices[dim], piece, dim), piece, dim)
        indices[dim] = index.where(inside, piece.local[dim])
        whole = _with_slot(whole, dim)
    written = call(**{"self": whole, "indices": indices})
    for dim in cut:
        written = written.narrow(dim, 0, piece.local[dim])
    return written.contiguous()


def _scatter(call: Call, held: Held) -> Any:
    whole, piece = call["self"], held["self"]
    dim = call["dim"] % max(whole.ndim, 1)
    inside, index = _here(call["index"], piece, dim)
    changed = {"self": _with_slot(whole, dim), "index": index.where(inside, piece.local[dim])}
    return call(**changed).narrow(dim, 0, piece.local[dim]).contiguous()


def _with_slot(whole: Tensor, dim: int) -> Tensor:
    return torch.cat([whole, whole.new_zeros((*whole.shape[:dim], 1, *whole.shape[dim + 1 :]))], dim)


def _embedding_backward(call: Call, held: Held) -> Any:
    output = held.output
    size, padding = output.local[0], call["padding_idx"] - output.offset[0]
    inside, index = _here(call["indices"], output, 0)
    changed = {
        "indices": index.where(inside, size),
        "num_weights": size + 1,
        "padding_idx": padding if call["padding_idx"] >= 0 and 0 <= padding < size else -1,
    }
    return call(**changed).narrow(0, 0, size).contiguous()


def _embedding_bag(call: Call, held: Held) -> Any:
    """Two rows behind the piece: one of zeros for all that is held elsewhere, so that means count it, and one that
    stands for padding, which is left out of sums and counts."""
    weight, piece, padding = call["weight"], held["weight"], call["padding_idx"]
    index, size = _in_bags(call, piece)
    longer = torch.cat([weight, weight.new_zeros(2, weight.shape[1])])
    return call(weight=longer, indices=index, padding_idx=size + 1 if padding >= 0 else -1)


def _embedding_bag_backward(call: Call, held: Held) -> Any:
    output = held.output
    index, size = _in_bags(call, output)
    padding = size + 1 if call["padding_idx"] >= 0 else -1
    grad = call(indices=index, num_weights=size + 2, padding_idx=padding)
    return grad.narrow(0, 0, size).contiguous()


def _in_bags(call: Call, piece: Piece) -> tuple[Tensor, int]:
    given, size = call["indices"], piece.local[0]
    inside, index = _here(given, piece, 0)
    index = index.where(inside, size)
    return index.where(given != call["padding_idx"], size + 1), size


_RUNS: dict[str, Run] = {
    "aten._embedding_bag": _embedding_bag,
    "aten._embedding_bag_backward": _embedding_bag_backward,
    "aten._embedding_bag_dense_backward": _embedding_bag_backward,
    "aten._embedding_bag_forward_only": _embedding_bag,
    "aten._unsafe_index": _index,
    "aten._unsafe_index_put": _index_put,
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding_backward,
    "aten.gather": _gather,
    "aten.index": _index,
    "aten.index_put": _index_put,
    "aten.index_select": _index_select,
    "aten.scatter": _scatter,
    "aten.scatter_add": _scatter,
    "aten.scatter_reduce": _scatter,
    "aten.select": _select,
    "aten.select_backward": select_backward,
}


def _experts(call: Call, held: Held) -> dict[str, Any]:
    """Experts that are elsewhere are left out by the operator itself."""
    return {"index": call["index"] - held["up"].offset[0]}


LOOKUP = {name: Operator(run) for name, run in _RUNS.items()}
LOOKUP |= {name: Operator(changes=_experts) for name in ("shardwise.experts", "shardwise.experts_backward")}
