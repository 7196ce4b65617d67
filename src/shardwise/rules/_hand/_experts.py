"""Mixtures of experts, `shardwise::experts` and its backward.

Every token stands alone, and so does every one of its slots, whose results are added up. Experts that a rank lacks add
nothing. Inside of an expert features are cut as in any pair of products, one by columns and one by rows; the bias that
is added after the second is then a term like the others.
"""

from collections.abc import Iterator

from torch.distributed.tensor.placement_types import Placement

from ...calls import Call
from ...placements import Row, partial, partials_of, shard
from ._register import hand, more_rows
from ._rows import LINEAR, R, dims, pass_through, row_of

_SUM = partial("sum")
_TOKENS, _EXPERTS = ("input", "index", "weight"), ("up", "up_bias", "down", "down_bias")


def _is_mixture(call: Call) -> bool:
    """False for shapes and dtypes that are not those of a mixture of experts."""
    tokens, index, weight = (call.shape(name) for name in _TOKENS)
    up, down = call.shape("up"), call.shape("down")
    if not (len(tokens) == len(index) == 2 and len(up) == 4 and len(down) == 3 and index == weight):
        return False
    if tokens[0] != index[0] or up[:2] != (down[0], tokens[1]) or up[3] != down[1]:
        return False
    if call.has("up_bias") and call.shape("up_bias") != (up[0], *up[2:]):
        return False
    if call.has("down_bias") and call.shape("down_bias") != (down[0], down[2]):
        return False
    return not call["index"].dtype.is_floating_point and call["input"].dtype.is_floating_point


def _given(call: Call, placed: dict[str, Placement]) -> dict[str, Placement]:
    """Without biases that the call lacks."""
    return {name: placement for name, placement in placed.items() if call.has(name)}


def _gradients(
    call: Call,
    tokens: Placement,
    weight: Placement,
    up: Placement,
    down: Placement,
    biases: tuple[Placement, Placement],
) -> list[Placement]:
    """The placements of the gradients, in the order of backward: of biases that the call lacks there are none."""
    given = zip(("up_bias", "down_bias"), biases, strict=True)
    return [tokens, weight, up, down, *(placement for name, placement in given if call.has(name))]


@hand("shardwise.experts.default")
def experts(call: Call) -> Iterator[Row]:
    if not _is_mixture(call):
        return
    if 0 in dims(call, "input"):
        yield row_of(call, dict.fromkeys(_TOKENS, shard(0)), shard(0))
    if 1 in dims(call, "index"):
        yield row_of(call, {"index": shard(1), "weight": shard(1)}, _SUM)
    if 0 in dims(call, "up"):
        yield row_of(call, _given(call, dict.fromkeys(_EXPERTS, shard(0))), _SUM, local="lookup")
    if 1 in dims(call, "down"):
        cut = {"up": shard(3), "up_bias": shard(2), "down": shard(1), "down_bias": _SUM}
        yield row_of(call, _given(call, cut), _SUM)
    if 2 in dims(call, "down"):
        yield row_of(call, _given(call, {"down": shard(2), "down_bias": shard(1)}), shard(1))
    yield from pass_through(call, "weight", LINEAR)
    for p in partials_of(call["down"].dtype, LINEAR):
        yield row_of(call, _given(call, {"down": p, "down_bias": p}), p)


@hand("shardwise.experts_backward.default")
def experts_backward(call: Call) -> Iterator[Row]:
    if not _is_mixture(call) or call.shape("grad") != (call.shape("input")[0], call.shape("down")[2]):
        return
    if 0 in dims(call, "input"):
        cut = dict.fromkeys(("grad", *_TOKENS), shard(0))
        yield row_of(call, cut, _gradients(call, shard(0), shard(0), _SUM, _SUM, (_SUM, _SUM)))
    if 1 in dims(call, "index"):
        cut = {"index": shard(1), "weight": shard(1)}
        yield row_of(call, cut, _gradients(call, _SUM, shard(1), _SUM, _SUM, (_SUM, _SUM)))
    if 0 in dims(call, "up"):
        cut = _given(call, dict.fromkeys(_EXPERTS, shard(0)))
        made = _gradients(call, _SUM, _SUM, shard(0), shard(0), (shard(0), shard(0)))
        yield row_of(call, cut, made, local="lookup")
    if 1 in dims(call, "down"):
        cut = _given(call, {"up": shard(3), "up_bias": shard(2), "down": shard(1), "down_bias": _SUM})
        yield row_of(call, cut, _gradients(call, _SUM, _SUM, shard(3), shard(1), (shard(2), R)))
    if 2 in dims(call, "down"):
        cut = _given(call, {"grad": shard(1), "down": shard(2), "down_bias": shard(1)})
        yield row_of(call, cut, _gradients(call, _SUM, _SUM, _SUM, shard(2), (_SUM, shard(1))))
    yield from pass_through(call, "grad", LINEAR)


@more_rows("shardwise.experts.default", "shardwise.experts_backward.default", name="exchange")
def by_exchange(call: Call) -> Iterator[Row]:
    """Tokens go to the ranks that have their experts, and what these return comes back."""
    if not _is_mixture(call) or 0 not in dims(call, "input") or 0 not in dims(call, "up"):
        return
    names = (*(("grad",) if "grad" in call else ()), *_TOKENS, *_EXPERTS)
    cut = _given(call, dict.fromkeys(names, shard(0)))
    yield row_of(call, cut, shard(0), local="exchange")
