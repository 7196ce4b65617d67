"""Attention, `shardwise::attention` and its backward: softmax(q k^T * scale + mask) v.

Every image of the batch, every head and every query stands alone; a query needs all keys. With the logarithm of the
softmax's denominator at hand, backward may also cut the keys. Key and value heads may serve groups of query heads:
then the heads are cut between groups, or each rank picks the heads its queries need.
"""

from collections.abc import Iterator, Sequence

import torch
from torch.distributed.tensor.placement_types import Placement

from ...calls import Call
from ...placements import Row, Shards, partial, partials_of, shard
from ._register import hand, more_rows
from ._rows import LINEAR, R, aligned, dims, row_of

_SUM = partial("sum")
_BATCH, _HEAD, _QUERY, _KEY = range(4)


def _mask(call: Call, dim: int) -> dict[str, Placement]:
    """The mask's placement when dim `dim` of the scores is sharded: it broadcasts to them."""
    own = aligned(call.shape("mask"), dim, 4) if call.has("mask") else None
    return {} if own is None else {"mask": shard(own)}


def _form(call: Call, form: str | None) -> str | None:
    """With dropout every piece of the scores draws from a stream of its own."""
    return "seeds" if call["dropout"] else form


def _heads(call: Call) -> tuple[int, int]:
    return call.shape("query")[1], call.shape("key")[1]


def _served(call: Call) -> tuple[Shards, str | None]:
    """For which shards query heads can be cut with all key heads at hand, and how; a single key head serves any."""
    single = call.shape("key")[1] == 1
    return "any" if single else "nonempty", _form(call, None if single else "heads")


def _has_positions(call: Call) -> bool:
    """False for the causal form of a call that adds a mask too: scores that are NaN would be hidden before or after."""
    return not (call["causal"] and call.has("mask") and call["mask"].dtype.is_floating_point)


def _is_attention(call: Call) -> bool:
    """False for shapes and dtypes that are not those of attention, but that its kernels take."""
    query, key, value = (call.shape(name) for name in ("query", "key", "value"))
    if not all(len(shape) == 4 and shape[0] == query[0] for shape in (query, key, value)):
        return False
    if len({call[name].dtype for name in ("query", "key", "value")}) > 1:
        return False
    if query[3] != key[3] or key[:3] != value[:3] or not key[1] or query[1] % key[1]:
        return False
    if call.has("mask") and call["mask"].dtype not in (torch.bool, call["query"].dtype):
        return False
    if call.has("seed") and call["seed"].dtype.is_floating_point:
        return False
    scores = (*query[:3], key[2])
    mask = call.shape("mask") if call.has("mask") else ()
    covers = all(size in (1, of) for size, of in zip(reversed(mask), reversed(scores), strict=False))
    return covers and len(mask) <= 4 and call["query"].dtype.is_floating_point


def _is_backward(call: Call) -> bool:
    """The same of what backward is given besides."""
    if not _is_attention(call):
        return False
    rows, made = call.shape("query")[:3], (*call.shape("query")[:3], call.shape("value")[3])
    return call.shape("grad") == call.shape("output") == made and call.shape("logsumexp") == rows


def _all_alike(call: Call, names: Sequence[str]) -> Iterator[Row]:
    """Rows that cut all of some tensors alike: between images, or between groups of heads."""
    heads, shared = _heads(call)
    if call.output[0] > 1:
        row = dict.fromkeys(names, shard(0)) | _mask(call, _BATCH)
        yield row_of(call, row, shard(0), local=_form(call, None))
    if shared > 1:
        row = dict.fromkeys(names, shard(1)) | _mask(call, _HEAD)
        yield row_of(call, row, shard(1), "nonempty" if heads == shared else "even", local=_form(call, None))


@hand("shardwise.attention.default")
def attention(call: Call) -> Iterator[Row]:
    if not _is_attention(call):
        return
    heads, shared = _heads(call)
    queries = "causal" if call["causal"] else None
    yield from _all_alike(call, ("query", "key", "value"))
    if heads > shared:
        row = {"query": shard(1)} | _mask(call, _HEAD)
        yield row_of(call, row, shard(1), *_served(call))
    if 2 in dims(call, "query") and _has_positions(call):
        row = {"query": shard(2)} | _mask(call, _QUERY)
        yield row_of(call, row, shard(2), local=_form(call, queries))
    if 3 in dims(call, "value"):
        yield row_of(call, {"value": shard(3)}, [shard(3), R])
    for p in partials_of(call["value"].dtype, LINEAR):
        yield row_of(call, {"value": p}, [p, R])


@hand("shardwise.attention_backward.default")
def attention_backward(call: Call) -> Iterator[Row]:
    if not _is_backward(call):
        return
    of_queries = ("grad", "query", "output", "logsumexp")
    heads, shared = _heads(call)
    positions = "causal" if call["causal"] else None
    yield from _all_alike(call, (*of_queries, "key", "value"))
    if heads > shared:
        row = dict.fromkeys(of_queries, shard(1)) | _mask(call, _HEAD)
        yield row_of(call, row, [shard(1), _SUM, _SUM], *_served(call))
    if 2 in dims(call, "query") and _has_positions(call):
        row = dict.fromkeys(of_queries, shard(2)) | _mask(call, _QUERY)
        yield row_of(call, row, [shard(2), _SUM, _SUM], local=_form(call, positions))
    if 2 in dims(call, "key") and _has_positions(call) and not call["dropout"]:
        row = {"key": shard(2), "value": shard(2)} | _mask(call, _KEY)
        yield row_of(call, row, [_SUM, shard(2), shard(2)], local=positions)
    if 3 in dims(call, "value"):
        row = dict.fromkeys(("grad", "value", "output"), shard(3))
        yield row_of(call, row, [_SUM, _SUM, shard(3)])
    for p in partials_of(call["value"].dtype, LINEAR):
        yield row_of(call, {"grad": p}, p)
        yield row_of(call, {"value": p, "output": p}, [p, p, R])


@more_rows("shardwise.attention.default", "shardwise.attention_backward.default", name="ring")
def along_the_sequence(call: Call) -> Iterator[Row]:
    """Ranks that hold parts of the queries, keys and values attend together."""
    if not (_is_backward(call) if "grad" in call else _is_attention(call)):
        return
    if call["dropout"] or not _has_positions(call) or not {2} <= {*dims(call, "query"), *dims(call, "key")}:
        return
    names = [name for name in call.tensor_names if name != "mask"]
    row = dict.fromkeys(names, shard(2)) | _mask(call, _QUERY)
    yield row_of(call, row, shard(2), local="ring")
    if call["causal"] and not call.has("mask") and call.shape("query")[2] == call.shape("key")[2]:
        yield row_of(call, row, shard(2), local="balanced")
