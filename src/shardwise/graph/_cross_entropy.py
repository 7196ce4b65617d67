"""The cross entropy of a linear layer as one operator, `shardwise::linear_cross_entropy`: the logits are never whole.

It returns the sum of the losses and, with it, the gradients of input and weight by that sum: they are made of each
chunk of logits while it is there, so that none are computed twice. Backward multiplies them by the gradient of the sum.
Torch's own operator in chunks (`torch.nn.functional.linear_cross_entropy` with options) is captured as this one.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from ..calls import declare
from ..errors import UsageError
from ..forms import chunk_size, linear_cross_entropy_in_chunks

_summed = torch.library.custom_op(
    "shardwise::linear_cross_entropy",
    linear_cross_entropy_in_chunks,
    mutates_args=(),
    schema=(
        "(Tensor input, Tensor weight, Tensor target, int ignore_index, bool of_input, bool of_weight) -> Tensor[]"
    ),
)


@_summed.register_fake
def _(
    input: Tensor, weight: Tensor, target: Tensor, ignore_index: int, of_input: bool, of_weight: bool
) -> list[Tensor]:
    loss = input.new_empty((), dtype=torch.promote_types(weight.dtype, torch.float32))
    gradients = [input.new_empty(input.shape)] if of_input else []
    return [loss, *gradients, *([weight.new_empty(weight.shape)] if of_weight else [])]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    *_, ctx.of_input, ctx.of_weight = inputs
    ctx.save_for_backward(*(made.detach() for made in output[1:]))


def _differentiate(ctx: Any, grads: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    made = iter(ctx.saved_tensors)
    of_input, of_weight = (
        (each := next(made)) * grads[0].to(each.dtype) if wanted else None
        for wanted in (ctx.of_input, ctx.of_weight)
    )
    return of_input, of_weight, None, None, None, None


_summed.register_autograd(_differentiate, setup_context=_save)


# -- prices


def _sizes(input: Any, weight: Any) -> tuple[int, int, int]:
    """Tokens, width and classes."""
    return math.prod(input.shape[:-1]), weight.shape[1], weight.shape[0]


def _products(
    input: Any, weight: Any, of_input: bool, of_weight: bool, **_: Any
) -> list[tuple[int, int, int, int]]:
    tokens, width, classes = _sizes(input, weight)
    size = max(1, chunk_size(tokens, width, classes))
    count = -(-tokens // size)
    found = [(count, size, classes, width)]
    found += [(count, size, width, classes)] if of_input else []
    return found + ([(count, classes, width, size)] if of_weight else [])


def _flops(**arguments: Any) -> int:
    return sum(2 * math.prod(each) for each in _products(**arguments))


def _traffic(input: Any, weight: Any, of_input: bool, of_weight: bool, **_: Any) -> int:
    """Logits are widened, reduced twice, shifted and raised; then scaled, lessened at one place and narrowed. What
    chunks add to the gradient of the weight is added up."""
    tokens, width, classes = _sizes(input, weight)
    narrow, wide = weight.dtype.itemsize, max(weight.dtype.itemsize, 4)
    casts = narrow + wide if narrow < wide else 0
    moved = tokens * classes * (casts + 6 * wide)
    if of_input or of_weight:
        moved += tokens * classes * (casts + 4 * wide)
    if of_input:
        moved += 2 * tokens * width * narrow
    if of_weight:
        count = -(-tokens // max(1, chunk_size(tokens, width, classes)))
        moved += (count - 1) * width * classes * (2 * wide + narrow) + width * classes * 2 * casts
    return moved


def _scratch(input: Any, weight: Any, of_weight: bool, **_: Any) -> int:
    tokens, width, classes = _sizes(input, weight)
    narrow, wide = weight.dtype.itemsize, max(weight.dtype.itemsize, 4)
    logits = chunk_size(tokens, width, classes) * classes * 2 * wide
    sums = 2 if narrow < wide else 1
    return logits + (sums * width * classes * wide if of_weight else 0)


declare(_summed, kernel="matmul", flops=_flops, products=_products, traffic=_traffic, scratch=_scratch)


# -- how programs call it


def linear_cross_entropy(
    input: Tensor, weight: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """The cross entropy of `input @ weight.T`, in float32 or wider, without ever having all of these logits.

    The last dim of `input` is that of features; `weight` has classes and features; `target` has the class of each
    token, or `ignore_index`. `reduction` is `mean` over tokens that are not ignored, or `sum`.

    >>> hidden, weight, target = torch.randn(4, 6, 8), torch.randn(50, 8), torch.randint(50, (4, 6))
    >>> loss = linear_cross_entropy(hidden, weight, target)
    >>> torch.allclose(loss, F.cross_entropy((hidden @ weight.T).flatten(0, 1), target.flatten()), atol=1e-5)
    True
    """
    if reduction not in ("mean", "sum"):
        raise UsageError(f"reduction={reduction!r} of linear_cross_entropy: use 'mean' or 'sum'")
    if input.shape[:-1] != target.shape or weight.shape[1:] != input.shape[-1:]:
        shapes = ", ".join(str(list(t.shape)) for t in (input, weight, target))
        raise UsageError(
            f"input, weight and target of linear_cross_entropy have shapes {shapes}: they must be [..., features], "
            "[classes, features] and [...]"
        )
    wanted = [torch.is_grad_enabled() and t.requires_grad for t in (input, weight)]
    if torch.is_autocast_enabled(input.device.type):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, weight = input.to(dtype), weight.to(dtype)
    total = _summed(input, weight, target, ignore_index, *wanted)[0]
    if reduction == "sum":
        return total
    return total / (target != ignore_index).sum().to(total.dtype)


@contextmanager
def torch_may_chunk() -> Iterator[None]:
    """Within, torch does not warn that its operator in chunks needs more memory when it is traced: it is replaced."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "linear_cross_entropy: forcing allow_retain_graph")
        yield


def chunk_losses(module: fx.GraphModule) -> None:
    """Replace torch's operators that compute the loss of a linear layer in chunks, in an exported graph."""
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            for node in inner.graph.nodes:
                if (replaced := _REPLACED.get(str(node.target))) is not None:
                    node.target = replaced
            inner.recompile()


def _reduced(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    class_weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    *_: Any,
) -> tuple[Tensor, None, None, None]:
    """Torch's operator returns gradients beside the loss, which its own backward uses."""
    if bias is None and class_weight is None and not label_smoothing:
        loss = linear_cross_entropy(input, weight, target, ignore_index=ignore_index, reduction=reduction)
        return loss.to(input.dtype), None, None, None
    loss = F.cross_entropy(
        F.linear(input, weight, bias),
        target,
        class_weight,
        None,
        ignore_index,
        None,
        reduction,
        label_smoothing,
    )
    return loss, None, None, None


def _of_each(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    class_weight: Tensor | None,
    ignore_index: int,
    *_: Any,
) -> Tensor:
    """The loss of each token, whose gradient is not known before backward: the logits are whole."""
    logits = F.linear(input, weight, bias)
    return F.cross_entropy(logits, target, class_weight, ignore_index=ignore_index, reduction="none")


_REPLACED = {
    "torch_nn._linear_cross_entropy_batch_chunked.default": _reduced,
    "torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default": _of_each,
}
