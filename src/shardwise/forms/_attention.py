"""The local forms `causal`, `heads` and `seeds` of attention.

A rank that holds the queries from position p on lets them attend to the keys up to their own position, which the
operator, counting from its own first query, would not know. A rank that holds some of the query heads picks, of the key
and value heads that it holds, those that serve them. Its dropout draws for the places of its queries among all of them,
so that what is dropped does not depend on who computes it, forward or backward.
"""

from typing import Any

import torch
from torch import Tensor

from ..calls import Call
from ._blocks import Attended, Range, Sequences, as_given, gradients
from ._operator import Operator
from ._piece import Held


def _changes(call: Call, held: Held) -> dict[str, Any]:
    query = held["query"]
    changes: dict[str, Any] = {}
    if call["dropout"]:
        where, seed = (*query.offset[:3], *query.shape[:3]), call["seed"]
        changes["seed"] = torch.cat([seed.view(1), *(seed.new_full((1,), n) for n in where)])
        if _is_cut(call, held):
            changes |= {"causal": False, "mask": _mask(call, held)}
    if (serving := _serving_heads(call, held)) is not None:
        changes |= {name: call[name].index_select(1, serving) for name in ("key", "value")}
    return changes


def _is_cut(call: Call, held: Held) -> bool:
    """True for a causal call whose queries or keys do not begin at the first position, or do not end at the last."""
    return bool(call["causal"] and (held["query"].cuts(2) or held["key"].cuts(2)))


def _mask(call: Call, held: Held) -> Tensor:
    """Where the rank's queries may attend, as a mask, which dropout needs; the call's own mask goes on holding."""
    queries, keys = (
        torch.arange(*positions(held, name), device=call[name].device) for name in ("query", "key")
    )
    allowed, mask = keys <= queries.unsqueeze(1), call["mask"]
    return allowed if mask is None else mask & allowed


def positions(held: Held, name: str) -> Range:
    """The positions of a sequence that a rank holds."""
    piece = held[name]
    return piece.offset[2], piece.offset[2] + piece.local[2]


def mask_at(held: Held) -> int:
    """The position of the first key that a rank's mask is for; 0 without a mask."""
    return held["mask"].offset[-1] if "mask" in held.call.tensor_names else 0


def _serving_heads(call: Call, held: Held) -> Tensor | None:
    """For each of the rank's query heads the key head that serves it, counted from the first that the rank holds; None
    where the operator finds them itself, because both are cut alike or there is one."""
    query, key = held["query"], held["key"]
    group = query.shape[1] // key.shape[1]
    if key.shape[1] == 1 or (query.local[1], query.offset[1]) == (
        key.local[1] * group,
        key.offset[1] * group,
    ):
        return None
    heads = torch.arange(query.local[1], device=call["query"].device) + query.offset[1]
    return heads // group - key.offset[1]


def _forward(call: Call, held: Held) -> Any:
    call = call.with_arguments(**_changes(call, held))
    if not _is_cut(call, held):
        return call()
    attended = Attended(call, Sequences((positions(held, "query"),), (call["query"],)), mask_at(held))
    attended.add(_keys(call, held))
    return attended.results()


def _backward(call: Call, held: Held) -> Any:
    given = call
    call = call.with_arguments(**_changes(call, held))
    if _is_cut(call, held):
        of_queries = tuple(call[name] for name in ("grad", "query", "output", "logsumexp"))
        queries = Sequences((positions(held, "query"),), of_queries)
        grad_query, *grads = as_given(call, gradients(call, queries, _keys(call, held), mask_at(held)))
    else:
        grad_query, *grads = call()
    serving = _serving_heads(given, held)
    if serving is not None:  # each key head gathers from the query heads that it serves
        grads = [
            torch.zeros_like(given[name]).index_add(1, serving, grad)
            for name, grad in zip(("key", "value"), grads, strict=True)
        ]
    return grad_query, *grads


def _keys(call: Call, held: Held) -> Sequences:
    return Sequences((positions(held, "key"),), (call["key"], call["value"]))


_HEADS = ((("query", 1), ("key", 1)), (("query", 1), ("value", 1)))

ATTENTION: dict[str, Operator] = {
    "shardwise.attention": Operator(_forward, leads=_HEADS, varies=True, less_nan=True),
    "shardwise.attention_backward": Operator(_backward, leads=_HEADS, varies=True, less_nan=True),
}
