"""Attention, `shardwise::attention` and its backward: softmax(q k^T * scale + mask) v.

Every image of the batch, every head and every query stands alone; a query needs all keys. With the logarithm of the
softmax's denominator at hand, backward may also cut the keys. Key and value heads may serve groups of query heads:
then the heads are cut between groups, or each rank picks the heads its queries need.
"""

from collections.abc import Iterator

from torch.distributed.tensor.placement_types import Placement

from ...placements import Row, Shards, partial, shard
from ..hand._call import LINEAR, HandCall, R, aligned
from ..hand._register import hand

_SUM = partial("sum")
_BATCH, _HEAD, _QUERY, _KEY = range(4)


def _mask(call: HandCall, dim: int) -> dict[str, Placement]:
    """The mask's placement when dim `dim` of the scores is sharded: it broadcasts to them."""
    own = aligned(call.shape("mask"), dim, 4) if call.has("mask") else None
    return {} if own is None else {"mask": shard(own)}


def _form(call: HandCall, form: str | None) -> str | None:
    """With dropout every piece of the scores draws from a stream of its own."""
    return "seeds" if call["dropout"] else form


def _heads(call: HandCall) -> tuple[int, int]:
    return call.shape("query")[1], call.shape("key")[1]


def _served(call: HandCall) -> tuple[Shards, str | None]:
    """For which shards query heads can be cut with all key heads at hand, and how; a single key head serves any."""
    single = call.shape("key")[1] == 1
    return "any" if single else "nonempty", _form(call, None if single else "heads")


def _has_positions(call: HandCall) -> bool:
    """False for the causal form of a call that adds a mask too: scores that are NaN would be hidden before or after."""
    return not (call["causal"] and call.has("mask") and call["mask"].dtype.is_floating_point)


@hand("shardwise.attention.default")
def attention(call: HandCall) -> Iterator[Row]:
    everywhere = ("query", "key", "value")
    heads, shared = _heads(call)
    queries = "causal" if call["causal"] else None
    if call.output[0] > 1:
        row = dict.fromkeys(everywhere, shard(0)) | _mask(call, _BATCH)
        yield call.row(row, shard(0), local=_form(call, None))
    if shared > 1:
        row = dict.fromkeys(everywhere, shard(1)) | _mask(call, _HEAD)
        yield call.row(row, shard(1), "nonempty" if heads == shared else "even", local=_form(call, None))
    if heads > shared:
        row = {"query": shard(1)} | _mask(call, _HEAD)
        yield call.row(row, shard(1), *_served(call))
    if 2 in call.dims("query") and _has_positions(call):
        row = {"query": shard(2)} | _mask(call, _QUERY)
        yield call.row(row, shard(2), local=_form(call, queries))
    if 3 in call.dims("value"):
        yield call.row({"value": shard(3)}, [shard(3), R])
    for p in call.partials("value", LINEAR):
        yield call.row({"value": p}, [p, R])


@hand("shardwise.attention_backward.default")
def attention_backward(call: HandCall) -> Iterator[Row]:
    of_queries = ("grad", "query", "output", "logsumexp")
    everywhere = (*of_queries, "key", "value")
    heads, shared = _heads(call)
    positions = "causal" if call["causal"] else None
    if call.output[0] > 1:
        row = dict.fromkeys(everywhere, shard(0)) | _mask(call, _BATCH)
        yield call.row(row, shard(0), local=_form(call, None))
    if shared > 1:
        row = dict.fromkeys(everywhere, shard(1)) | _mask(call, _HEAD)
        yield call.row(row, shard(1), "nonempty" if heads == shared else "even", local=_form(call, None))
    if heads > shared:
        row = dict.fromkeys(of_queries, shard(1)) | _mask(call, _HEAD)
        yield call.row(row, [shard(1), _SUM, _SUM], *_served(call))
    if 2 in call.dims("query") and _has_positions(call):
        row = dict.fromkeys(of_queries, shard(2)) | _mask(call, _QUERY)
        yield call.row(row, [shard(2), _SUM, _SUM], local=_form(call, positions))
    if 2 in call.dims("key") and _has_positions(call) and not call["dropout"]:
        row = {"key": shard(2), "value": shard(2)} | _mask(call, _KEY)
        yield call.row(row, [_SUM, shard(2), shard(2)], local=positions)
    if 3 in call.dims("value"):
        row = dict.fromkeys(("grad", "value", "output"), shard(3))
        yield call.row(row, [_SUM, _SUM, shard(3)])
    for p in call.partials("value", LINEAR):
        yield call.row({"grad": p}, p)
        yield call.row({"value": p, "output": p}, [p, p, R])
