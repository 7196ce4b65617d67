"""The local forms `causal`, `heads` and `seeds` of attention.

A rank that holds the queries from position p on lets them attend to the keys up to their own position, which the
operator, counting from its own first query, would not know. A rank that holds some of the query heads picks the key
and value heads that serve them. Its dropout draws from a stream of its own, found from the seed and from where its
queries lie, so that backward draws the same again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._piece import LocalOp, Piece


def _changes(here: LocalOp) -> dict[str, Any]:
    query: Piece = here.pieces["query"]
    changes: dict[str, Any] = {}
    if here["dropout"]:
        images, heads, positions, _ = query.offset
        changes["seed"] = (here["seed"] + 7919 * images + 104729 * heads + 1299709 * positions) % 2**31
    if here["causal"] and (query.cuts(2) or here.pieces["key"].cuts(2)):
        changes |= {"causal": False, "mask": _mask(here)}
    if (serving := _serving_heads(here)) is not None:
        changes |= {name: here[name].index_select(1, serving) for name in ("key", "value")}
    return changes


def _mask(here: LocalOp) -> Tensor:
    """Where the rank's queries may attend, as a mask; the call's own mask goes on holding."""
    queries, keys = (_positions(here, name) for name in ("query", "key"))
    allowed = keys <= queries.unsqueeze(1)
    mask = here["mask"]
    if mask is None:
        return allowed
    return mask & allowed if mask.dtype == torch.bool else mask.masked_fill(~allowed, -torch.inf)


def _positions(here: LocalOp, name: str) -> Tensor:
    piece: Piece = here.pieces[name]
    return torch.arange(piece.local[2], device=here[name].device) + piece.offset[2]


def _serving_heads(here: LocalOp) -> Tensor | None:
    """For each of the rank's query heads the key head that serves it; None where the operator finds them itself."""
    query, key = here.pieces["query"], here.pieces["key"]
    if not query.cuts(1) or key.cuts(1) or key.shape[1] == 1:
        return None
    heads = torch.arange(query.local[1], device=here["query"].device) + query.offset[1]
    return heads // (query.shape[1] // key.shape[1])


def _forward(here: LocalOp) -> Any:
    return here.run(**_changes(here))


def _backward(here: LocalOp) -> Any:
    grad_query, *grads = here.run(**_changes(here))
    serving = _serving_heads(here)
    if serving is not None:  # each key head gathers from the query heads that it serves
        grads = [
            torch.zeros_like(here[name]).index_add(1, serving, grad)
            for name, grad in zip(("key", "value"), grads, strict=True)
        ]
    return grad_query, *grads


ATTENTION: dict[str, Callable[[LocalOp], Any]] = {
    "shardwise.attention": _forward,
    "shardwise.attention_backward": _backward,
}
