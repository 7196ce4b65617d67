"""Losses against labels: every sample stands alone, and what the reduction makes of the samples decides the rest.

Summed, the pieces add up. A mean divides by the weight of all samples, which no rank knows before the ranks have
talked, so it has no rows; its gradient is given that weight, and has them.
"""

from collections.abc import Iterator

from torch.distributed.tensor.placement_types import Placement

from ...calls import Call
from ...placements import Row, partial, partials_of, shard
from ._register import hand
from ._rows import LINEAR, R, aligned, dims, row_of

_NONE, _MEAN, _SUM = range(3)
_FALLING = {"max": "min", "min": "max"}


def _samples(call: Call) -> Iterator[tuple[int, int]]:
    """The dims that count samples, in the predictions and in the labels, which lack that of the classes."""
    if len(call.shape("self")) > 1:
        for dim in dims(call, "target"):
            yield dim + (dim > 0), dim


@hand("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss(call: Call) -> Iterator[Row]:
    """The second output is the weight of all samples, which is left at zero where nothing is reduced and there is
    more than one sample."""
    reduction, added = call["reduction"], partial("sum")
    for dim, of_labels in _samples(call):
        outputs: list[Placement] = [shard(of_labels), R] if reduction == _NONE else [added, added]
        if reduction != _MEAN:
            yield row_of(call, {"self": shard(dim), "target": shard(of_labels)}, outputs)
    for p in partials_of(call["self"].dtype, LINEAR):
        yield row_of(call, {"self": p}, [p, R])
        if call.has("weight") and reduction != _MEAN:
            yield row_of(call, {"weight": p}, [p, R if reduction == _NONE and call.shape("target") else p])
    if reduction == _NONE and not call.has("weight"):
        for p in partials_of(call["self"].dtype, ("max", "min")):
            yield row_of(call, {"self": p}, [partial(_FALLING[p.reduce_op]), R])


@hand("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(call: Call) -> Iterator[Row]:
    for dim, of_labels in _samples(call):
        row: dict[str, Placement] = {"self": shard(dim), "target": shard(of_labels)}
        if call["reduction"] == _NONE:
            row["grad_output"] = shard(of_labels)
        yield row_of(call, row, shard(dim))
    for name in ("grad_output", "weight"):
        if call.has(name):
            for p in partials_of(call[name].dtype, LINEAR):
                yield row_of(call, {name: p}, p)


@hand("aten.binary_cross_entropy.default")
def binary_cross_entropy(call: Call) -> Iterator[Row]:
    """Linear in the weights. It is affine in the labels, too, but takes none beyond 0 and 1, as pieces may be."""
    reduction = call["reduction"]
    if reduction not in (_NONE, _MEAN, _SUM):
        return  # the kernel takes any number for none
    for dim in dims(call, "self") if call.shape("target") == call.shape("self") else ():
        row: dict[str, Placement] = {"self": shard(dim), "target": shard(dim)}
        own = aligned(call.shape("weight"), dim, len(call.shape("self"))) if call.has("weight") else None
        if own is not None:
            row["weight"] = shard(own)
        if reduction == _MEAN:
            yield row_of(call, row, partial("avg"), "even")
        else:
            yield row_of(call, row, shard(dim) if reduction == _NONE else partial("sum"))
    if call.has("weight"):
        for p in partials_of(call["self"].dtype, LINEAR):
            yield row_of(call, {"weight": p}, p)
