"""Mixtures of experts as one device-neutral pair of operators, `shardwise::experts` and its backward.

Every token goes to a few experts, each a small network of its own, and gets the weighted sum of what they return:

    sum over s of weight[t, s] * (gate(input[t] @ up[e] + up_bias[e]) @ down[e] + down_bias[e]),  e = index[t, s]

`up` has the dims expert, input, part, feature: gates such as that of SwiGLU make one feature of two parts. An index
that is none of the experts at hand adds nothing, so that whoever has some of the experts computes a term of the sum.
`experts` is how many there are in all, which the price needs: it counts every expert as chosen equally often. Tokens
are sorted by expert, so that each expert is one matrix product; backward computes the hidden values again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..calls import declare

aten = torch.ops.aten


@dataclass(frozen=True)
class Gate:
    """The function between the two products, of hidden values (pair, part, feature), and its gradient: of the gradient
    of its result, and of the hidden values."""

    parts: int
    run: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, Tensor], Tensor]


_Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]

_ACTIVATIONS: dict[str, _Activation] = {
    "silu": (F.silu, aten.silu_backward),
    "gelu": (F.gelu, aten.gelu_backward),
    "gelu_tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda grad, x: aten.gelu_backward(grad, x, approximate="tanh"),
    ),
    "relu": (F.relu, lambda grad, x: aten.threshold_backward(grad, x, 0)),
    "relu_squared": (lambda x: F.relu(x).square(), lambda grad, x: 2 * grad * F.relu(x)),
}


def _plain(activation: _Activation) -> Gate:
    run, back = activation
    return Gate(1, lambda x: run(x[:, 0]), lambda grad, x: back(grad, x[:, 0]).unsqueeze(1))


def _gated(activation: _Activation) -> Gate:
    """One part through the activation, times the other."""
    run, back = activation
    return Gate(
        2,
        lambda x: run(x[:, 0]) * x[:, 1],
        lambda grad, x: torch.stack([back(grad * x[:, 1], x[:, 0]), grad * run(x[:, 0])], 1),
    )


# Of GPT-OSS: a steeper SiLU, both parts bounded, one added to the second.
_STEEPNESS, _BOUND = 1.702, 7.0


def _bounded(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first = x[:, 0].clamp(max=_BOUND)
    return first, x[:, 1].clamp(-_BOUND, _BOUND) + 1, torch.sigmoid(_STEEPNESS * first)


def _bounded_swiglu(x: Tensor) -> Tensor:
    first, second, share = _bounded(x)
    return second * first * share


def _bounded_swiglu_backward(grad: Tensor, x: Tensor) -> Tensor:
    first, second, share = _bounded(x)
    of_first = grad * second * share * (1 + _STEEPNESS * first * (1 - share))
    of_second = grad * first * share
    inside = x[:, 1].abs() <= _BOUND
    return torch.stack([of_first.where(x[:, 0] <= _BOUND, 0), of_second.where(inside, 0)], 1)


GATES: dict[str, Gate] = {
    **{name: _plain(each) for name, each in _ACTIVATIONS.items()},
    **{f"{name}_gated": _gated(each) for name, each in _ACTIVATIONS.items()},
    "bounded_swiglu": Gate(2, _bounded_swiglu, _bounded_swiglu_backward),
}


class _Pairs:
    """The pairs of a token and one of its experts, in the order of the experts; last those of experts elsewhere."""

    def __init__(self, index: Tensor, experts: int) -> None:
        self.shape, self.experts = tuple(index.shape), experts
        here = index.reshape(-1)
        here = torch.where((here >= 0) & (here < experts), here, experts)
        self.expert, self.order = torch.sort(here, stable=True)
        self.tokens = self.order // max(self.shape[1], 1)
        every = torch.arange(experts, device=index.device)
        self.ends = torch.searchsorted(self.expert, every, right=True).to(torch.int32)
        self.known = (self.expert < experts).unsqueeze(1)

    def product(self, rows: Tensor, matrices: Tensor, bias: Tensor | None = None) -> Tensor:
        """Of each pair's row and the matrix of its expert; anything for pairs of experts elsewhere."""
        made = _grouped(rows, matrices, self.ends)
        if bias is not None and self.experts:
            made += bias[self.expert.clamp(max=self.experts - 1)]
        return made

    def summed(self, rows: Tensor) -> Tensor:
        """The sums of each expert's rows."""
        return rows.new_zeros(self.experts + 1, rows.shape[1]).index_add(0, self.expert, rows)[:-1]

    def by_token(self, rows: Tensor) -> Tensor:
        """Rows of pairs, by token and slot; zero for experts elsewhere."""
        placed = torch.empty_like(rows).index_copy_(0, self.order, rows.where(self.known, 0))
        return placed.view(*self.shape, *rows.shape[1:])


def _has_kernel(rows: Tensor) -> bool:
    return rows.is_cuda and rows.dtype == torch.bfloat16


def _grouped(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """The product of every run of rows with a matrix; run e ends before row `ends[e]`."""
    if _has_kernel(rows):
        return F.grouped_mm(rows, matrices, offs=ends)
    made, start = rows.new_zeros(rows.shape[0], matrices.shape[2]), 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        made[start:end] = rows[start:end] @ matrix
        start = end
    return made


def _grouped_gradient(rows: Tensor, grad: Tensor, ends: Tensor) -> Tensor:
    """The gradients of the matrices in `_grouped`."""
    if _has_kernel(rows):
        return F.grouped_mm(rows.t(), grad, offs=ends)
    made, start = rows.new_zeros(ends.shape[0], rows.shape[1], grad.shape[1]), 0
    for expert, end in enumerate(ends.tolist()):
        made[expert] = rows[start:end].t() @ grad[start:end]
        start = end
    return made


def _hidden(input: Tensor, pairs: _Pairs, up: Tensor, up_bias: Tensor | None) -> Tensor:
    bias = None if up_bias is None else up_bias.flatten(1)
    return pairs.product(input, up.flatten(2), bias).unflatten(1, up.shape[2:])


def _forward(
    input: Tensor,
    index: Tensor,
    weight: Tensor,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    gate: str,
    experts: int,
) -> Tensor:
    pairs = _Pairs(index, up.shape[0])
    features = GATES[gate].run(_hidden(input[pairs.tokens], pairs, up, up_bias))
    made = pairs.by_token(pairs.product(features, down, down_bias))
    return (made * weight.unsqueeze(2)).sum(1).to(input.dtype)


def _backward(
    grad: Tensor,
    input: Tensor,
    index: Tensor,
    weight: Tensor,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    gate: str,
    experts: int,
) -> list[Tensor]:
    """The gradients of input, weight, up, down, and of the biases that there are."""
    pairs, rule = _Pairs(index, up.shape[0]), GATES[gate]
    rows, arriving = input[pairs.tokens], grad[pairs.tokens]
    hidden = _hidden(rows, pairs, up, up_bias)
    features = rule.run(hidden)
    made = pairs.product(features, down, down_bias)
    of_weight = pairs.by_token((arriving * made).sum(1, keepdim=True)).squeeze(2)
    share = weight.reshape(-1, 1)[pairs.order].where(pairs.known, 0)
    of_made = (arriving * share).to(input.dtype)
    of_features = pairs.product(of_made, down.transpose(1, 2))
    of_hidden = rule.back(of_features, hidden).flatten(1)
    of_rows = pairs.product(of_hidden, up.flatten(2).transpose(1, 2))
    found = [
        pairs.by_token(of_rows).sum(1),
        of_weight.to(weight.dtype),
        _grouped_gradient(rows, of_hidden, pairs.ends).unflatten(2, up.shape[2:]),
        _grouped_gradient(features, of_made, pairs.ends),
    ]
    found += [] if up_bias is None else [pairs.summed(of_hidden).unflatten(1, up.shape[2:])]
    return found + ([] if down_bias is None else [pairs.summed(of_made)])


_ARGUMENTS = (
    "Tensor input, Tensor index, Tensor weight, Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, "
    "str gate, int experts"
)
experts = torch.library.custom_op(
    "shardwise::experts", _forward, mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor"
)
experts_backward = torch.library.custom_op(
    "shardwise::experts_backward",
    _backward,
    mutates_args=(),
    schema=f"(Tensor grad, {_ARGUMENTS}) -> Tensor[]",
)


def _expected_pairs(index: Any, up: Any, experts: int) -> int:
    """How many pairs the experts at hand get, if all experts get as many."""
    tokens, slots = index.shape
    return -(-tokens * slots * up.shape[0] // max(experts, 1))


def _widths(up: Any) -> tuple[int, int, int]:
    """Of a token, of hidden values and of features."""
    _, width, parts, features = up.shape
    return width, parts * features, features


def _forward_products(
    index: Any, up: Any, down: Any, experts: int, **_: Any
) -> list[tuple[int, int, int, int]]:
    width, hidden, features = _widths(up)
    at_hand = max(up.shape[0], 1)
    rows = -(-_expected_pairs(index, up, experts) // at_hand)
    return [(at_hand, rows, hidden, width), (at_hand, rows, down.shape[2], features)]


def _backward_products(**arguments: Any) -> list[tuple[int, int, int, int]]:
    """Forward again, and the gradients of both factors."""
    forward = _forward_products(**arguments)
    of_rows = [(batch, rows, inner, columns) for batch, rows, columns, inner in forward]
    of_matrices = [(batch, inner, columns, rows) for batch, rows, columns, inner in forward]
    return forward + of_rows + of_matrices


def _forward_flops(**arguments: Any) -> int:
    return _operations(_forward_products(**arguments))


def _backward_flops(**arguments: Any) -> int:
    return _operations(_backward_products(**arguments))


def _operations(products: list[tuple[int, int, int, int]]) -> int:
    return sum(2 * math.prod(each) for each in products)


# Rows are picked, put and weighted at half of the rate at which a copy moves bytes, and a call takes as long as so many
# empty kernels besides, which sort pairs and start many small ones. Both were fitted to the eight calls that
# benchmarks/experts_on_gpu.py measured on an H200, whose times they give to 5 percent.
_MOVED, _LAUNCHES = 2, 120


def _pairs(index: Any) -> int:
    """All pairs of a token and one of its experts: those of experts elsewhere have rows too."""
    tokens, slots = index.shape
    return int(tokens * slots)


def _forward_traffic(input: Any, index: Any, up: Any, down: Any, **_: Any) -> int:
    """Rows are picked, gated, put back by token and weighted."""
    width, hidden, features = _widths(up)
    row = 2 * width + 2 * hidden + 2 * features + 7 * down.shape[2]
    return _MOVED * _pairs(index) * row * input.dtype.itemsize


def _backward_traffic(input: Any, index: Any, up: Any, down: Any, **_: Any) -> int:
    """Rows and gradients are picked, gated forward and back, and put back by token."""
    width, hidden, features = _widths(up)
    row = 7 * width + 6 * hidden + 6 * features + 9 * down.shape[2]
    return _MOVED * _pairs(index) * row * input.dtype.itemsize


def _forward_scratch(
    input: Any, index: Any, up: Any, up_bias: Any, down: Any, down_bias: Any, **_: Any
) -> int:
    """What is held when there is most of it, less the result, which is made at the end: rows and hidden values, these
    and what the gate makes of both parts, or features and the results three times, as they are put back by token."""
    width, hidden, features = _widths(up)
    result = down.shape[2]
    at_up = width + hidden * (1 if up_bias is None else 2)
    row = max(at_up, hidden + 2 * features, features + 3 * result)
    return max(0, _pairs(index) * row - input.shape[0] * result) * input.dtype.itemsize


def _backward_scratch(input: Any, index: Any, up: Any, down: Any, **_: Any) -> int:
    """Rows, hidden values, features and results are held with the gradients of all of them; besides them the gradients
    of the matrices at the end, or before these are there the gradients of rows, as they are put back by token."""
    width, hidden, features = _widths(up)
    row = 2 * (width + hidden + features) + 3 * down.shape[2]
    ends, before = (
        _pairs(index) * row,
        _pairs(index) * (row + 2 * width) - math.prod(up.shape) - math.prod(down.shape),
    )
    return max(ends, before) * input.dtype.itemsize


declare(
    experts,
    kernel="matmul",
    flops=_forward_flops,
    products=_forward_products,
    traffic=_forward_traffic,
    launches=_LAUNCHES,
    scratch=_forward_scratch,
)
declare(
    experts_backward,
    kernel="matmul",
    flops=_backward_flops,
    products=_backward_products,
    traffic=_backward_traffic,
    launches=_LAUNCHES,
    scratch=_backward_scratch,
)


@experts.register_fake
def _(input: Tensor, index: Any, weight: Any, up: Any, up_bias: Any, down: Tensor, *_: Any) -> Tensor:
    return input.new_empty(input.shape[0], down.shape[2])


@experts_backward.register_fake
def _(
    grad: Any,
    input: Tensor,
    index: Any,
    weight: Tensor,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    *_: Any,
) -> list[Tensor]:
    given = (input, weight, up, down, up_bias, down_bias)
    return [t.new_empty(t.shape) for t in given if t is not None]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.gate, ctx.experts = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *_, up_bias, _, down_bias = tensors = ctx.saved_tensors
    of_input, of_weight, of_up, of_down, *biases = experts_backward(grad, *tensors, ctx.gate, ctx.experts)
    left = iter(biases)
    of_up_bias, of_down_bias = (None if bias is None else next(left) for bias in (up_bias, down_bias))
    return of_input, None, of_weight, of_up, of_up_bias, of_down, of_down_bias, None, None


experts.register_autograd(_differentiate, setup_context=_save)
