"""The local forms `causal` and `seeds` of attention.

A rank that holds the queries from position p on lets them attend to the keys up to their own position, which the
operator, counting from its own first query, would not know. Its dropout draws from a stream of its own, found from the
seed and from where its queries lie, so that backward draws the same again.
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
        place = sum(at * size for at, size in zip(query.offset, (7919, 104729, 1299709, 0), strict=True))
        changes["seed"] = (here["seed"] + place) % 2**31
    if here["causal"] and query.cuts(2):
        changes |= {"causal": False, "mask": _mask(here, query)}
    return changes


def _mask(here: LocalOp, query: Piece) -> Tensor:
    """Where the rank's queries may attend, as a mask; the call's own mask goes on holding."""
    device = here["query"].device
    positions = torch.arange(query.local[2], device=device) + query.offset[2]
    allowed = torch.arange(here["key"].shape[2], device=device) <= positions.unsqueeze(1)
    mask = here["mask"]
    if mask is None:
        return allowed
    return mask & allowed if mask.dtype == torch.bool else mask.masked_fill(~allowed, -torch.inf)


def _attention(here: LocalOp) -> Any:
    return here.run(**_changes(here))


ATTENTION: dict[str, Callable[[LocalOp], Any]] = {
    "shardwise.attention": _attention,
    "shardwise.attention_backward": _attention,
}
