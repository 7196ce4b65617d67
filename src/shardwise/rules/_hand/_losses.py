"""Losses against labels: every sample stands alone, and what the reduction makes of the samples decides the rest.

Summed, the pieces add up. A mean divides by the weight of all samples, which no rank knows before the ranks have
talked, so it has no rows; its gradient is given that weight, and has them.
"""

from collections.abc import Iterator

from torch.distributed.tensor.placement_types import Placement

from ...calls import Call, Shape
from ...placements import Row, partial, partials_of, shard
from ._register import hand, more_rows
from ._rows import LINEAR, R, aligned, dims, pass_through, row_of

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


@hand("shardwise.linear_cross_entropy.default")
def linear_cross_entropy(call: Call) -> Iterator[Row]:
    if _is_layer(call):
        for dim in dims(call, "target"):
            row = {"input": shard(dim), "target": shard(dim)}
            yield row_of(call, row, _gradients(call, shard(dim), partial("sum"), partial("sum")))


@more_rows("shardwise.linear_cross_entropy.default", name="classes")
def by_classes(call: Call) -> Iterator[Row]:
    """Every rank has some of the classes, and of their logits what others need to know."""
    if _is_layer(call) and 0 in dims(call, "weight"):
        made = _gradients(call, partial("sum"), shard(0), R)
        yield row_of(call, {"weight": shard(0)}, made, local="classes")


def _is_layer(call: Call) -> bool:
    """False for shapes and dtypes that are not those of a linear layer with a class for each token."""
    input, weight, target = (call.shape(name) for name in ("input", "weight", "target"))
    fit = len(weight) == 2 and input[:-1] == target and input[-1:] == weight[1:]
    return fit and not call["target"].dtype.is_floating_point and call["input"].dtype.is_floating_point


def _gradients(call: Call, of_input: Placement, of_weight: Placement, loss: Placement) -> list[Placement]:
    """The placements of the loss, and of the gradients that are wanted."""
    wanted = zip((call["of_input"], call["of_weight"]), (of_input, of_weight), strict=True)
    return [loss, *(placement for want, placement in wanted if want)]


def _elementwise(call: Call, *beside: str) -> Iterator[tuple[int, dict[str, Placement]]]:
    """For losses of every element against its target: the dims along which elements are sharded, with what that makes
    of tensors that broadcast to them."""
    whole = call.shape("self")
    given = {name: call.shape(name) for name in beside if call.has(name)}
    if call.shape("target") == whole and all(_broadcasts(shape, whole) for shape in given.values()):
        for dim in dims(call, "self"):
            own = {name: aligned(shape, dim, len(whole)) for name, shape in given.items()}
            placed = {name: shard(where) for name, where in own.items() if where is not None}
            yield dim, {"self": shard(dim), "target": shard(dim), **placed}


def _broadcasts(shape: Shape, whole: Shape) -> bool:
    last = whole[len(whole) - len(shape) :]
    return len(last) == len(shape) and all(s in (1, size) for s, size in zip(shape, last, strict=True))


def _reduced(call: Call, row: dict[str, Placement], dim: int) -> Row:
    """The row that shards the elements of a loss: what is reduced is partial."""
    if call["reduction"] == _MEAN:
        return row_of(call, row, partial("avg"), "even")
    return row_of(call, row, shard(dim) if call["reduction"] == _NONE else partial("sum"))


def _is_reduction(call: Call) -> bool:
    """False for other numbers, which kernels take for one of these."""
    return call["reduction"] in (_NONE, _MEAN, _SUM)


@hand("aten.binary_cross_entropy.default")
def binary_cross_entropy(call: Call) -> Iterator[Row]:
    """Linear in the weights. It is affine in the labels, too, but takes none beyond 0 and 1, as pieces may be."""
    if _is_reduction(call):
        for dim, row in _elementwise(call, "weight"):
            yield _reduced(call, row, dim)
        if call.has("weight"):
            yield from pass_through(call, "weight", LINEAR)


@hand("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(call: Call) -> Iterator[Row]:
    """Linear in the weights, affine in the labels and in the weight of positive ones."""
    if _is_reduction(call):
        for dim, row in _elementwise(call, "weight", "pos_weight"):
            yield _reduced(call, row, dim)
        for name, reductions in (("weight", LINEAR), ("target", ("avg",)), ("pos_weight", ("avg",))):
            if call.has(name):
                yield from pass_through(call, name, reductions)


@hand("aten.mse_loss_backward.default")
def mse_loss_backward(call: Call) -> Iterator[Row]:
    """Linear in the gradient and in the difference. A mean divides by the number of elements, which pieces lack."""
    if not _is_reduction(call) or not _broadcasts(call.shape("grad_output"), call.shape("self")):
        return
    if call["reduction"] != _MEAN:
        for dim, row in _elementwise(call, "grad_output"):
            yield row_of(call, row, shard(dim))
    for name in ("grad_output", "self", "target"):
        yield from pass_through(call, name, LINEAR if name == "grad_output" else ("avg",))
    for p in partials_of(call["self"].dtype, LINEAR):
        yield row_of(call, {"self": p, "target": p}, p)
