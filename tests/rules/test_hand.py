"""Hand-written rules are held to experiments: every row they give holds, and none that discovery finds is missing."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as pytree

import shardwise as sw
from shardwise.calls import Call, overload
from shardwise.experiments import WAYS, Experiment
from shardwise.graph import attention
from shardwise.placements import SHARDS, Row, is_partial, is_replicate, split
from shardwise.rules import hand_rows, hand_written
from tests.independent import checking as independent


def r(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def i(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


def saved(query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[object, ...]:
    """The arguments of attention's backward for a forward call."""
    output, logsumexp = attention(query, key, value, *rest)
    return (r(*output.shape), query, key, value, output, logsumexp, *rest)


def normalised(grad: Tensor, x: Tensor, shape: list[int], weight: Tensor, bias: Tensor) -> tuple[object, ...]:
    _, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, 1e-5)
    return (grad, x, shape, mean, rstd, weight, bias, [True, True, True])


def grouped(x: Tensor, weight: Tensor | None, groups: int, mask: list[bool]) -> tuple[object, ...]:
    sizes = (x.shape[0], x.shape[1], x[0, 0].numel(), groups)
    _, mean, rstd = torch.native_group_norm(x, weight, None, *sizes, 1e-5)
    return (r(*x.shape), x, mean, rstd, weight, *sizes, mask)


def convolved(
    x: Tensor, weight: Tensor, bias: bool, stride: int, padding: int, groups: int, transposed: bool = False
) -> tuple[object, ...]:
    """The arguments of convolution's backward for a forward call."""
    spread = ([stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], groups)
    grad = torch.ops.aten.convolution.default(x, weight, None, *spread)
    return (r(*grad.shape), x, weight, [grad.shape[1]], *spread, [True, True, bias])


def far(x1: Tensor, x2: Tensor, p: float) -> tuple[object, ...]:
    """The arguments of the backward of distances for a forward call."""
    distances = torch.ops.aten._cdist_forward.default(x1, x2, p, None)
    return (r(*distances.shape), x1, x2, p, distances)


def pooled(x: Tensor, windows: int = 2) -> tuple[object, ...]:
    """The arguments of max pooling's backward for a forward call."""
    forward = getattr(torch.ops.aten, f"max_pool{windows}d_with_indices").default
    how = ([2] * windows, [2] * windows, [0] * windows, [1] * windows, False)
    output, indices = forward(x, *how)
    return (r(*output.shape), x, *how, indices)


def pooled_adaptively(x: Tensor, size: list[int]) -> tuple[object, ...]:
    forward = getattr(torch.ops.aten, f"adaptive_max_pool{len(size)}d").default
    output, indices = forward(x, size)
    return (r(*output.shape), x, indices)


def pooled_fractionally(x: Tensor, size: list[int]) -> tuple[object, ...]:
    forward = getattr(torch.ops.aten, f"fractional_max_pool{len(size)}d").default
    window = [2] * len(size)
    output, indices = forward(x, window, size, r(x.shape[0], x.shape[1], len(size)))
    return (r(*output.shape), x, window, size, indices)


def padded(kind: str, x: Tensor, *padding: int) -> tuple[object, ...]:
    """The arguments of a padding's backward for a forward call."""
    output = getattr(torch.ops.aten, f"{kind}_pad{len(padding) // 2}d").default(x, list(padding))
    return (r(*output.shape), x, list(padding))


def upsampled(before: list[int], after: list[int], *flags: bool) -> tuple[object, ...]:
    """The arguments of resampling's backward: flags, if any, say that corners are aligned."""
    return (r(*before[:2], *after), after, before, *flags, *[None] * len(after))


def c(*shape: int) -> Tensor:
    return torch.complex(r(*shape), r(*shape).flip(0))


def batched(x: Tensor, weight: Tensor | None, train: bool, mask: list[bool]) -> tuple[object, ...]:
    """The arguments of batch normalisation's backward for a forward call."""
    running = (r(x.shape[1]), r(x.shape[1]) + 0.5)
    _, mean, invstd = torch.native_batch_norm(
        x, weight, None, *(t.clone() for t in running), train, 0.1, 1e-5
    )
    return (r(*x.shape), x, weight, *running, mean, invstd, train, 1e-5, mask)


Q, K, V = r(2, 4, 9, 6), r(2, 4, 9, 6), r(2, 4, 9, 5)
K2, V2, V1 = r(2, 2, 9, 6), r(2, 2, 9, 5), r(2, 1, 9, 5)
PLAIN, CAUSAL = (None, None, False, 0.4, 0.0), (None, None, True, 0.4, 0.0)
BAGS = (r(9, 5), i(9, 12), torch.tensor([0, 3, 3, 8]))


def bagged(mode: int, padding: int = -1) -> tuple[object, ...]:
    forward = torch.ops.aten._embedding_bag.default(*BAGS, False, mode, False, None, False, padding)
    return (r(4, 5), *BAGS[1:], *forward[1:], 9, False, mode, False, None, padding)


def bagged_densely(mode: int, padding: int = -1) -> tuple[object, ...]:
    grad, indices, _, *saved, size, by_frequency, mode, _, weights, padding = bagged(mode, padding)
    return (grad, indices, *saved, size, by_frequency, mode, weights, padding)


def weighted_bags() -> tuple[object, ...]:
    forward = torch.ops.aten._embedding_bag.default(*BAGS, False, 0, False, r(12))
    return (r(4, 5), *BAGS, forward[1], 0, -1)


MIXED = (r(6, 5), i(4, 6, 2), r(6, 2), r(4, 5, 2, 3), None, r(4, 3, 5), None, "silu_gated", 4)
BIASED = (*MIXED[:4], r(4, 2, 3), MIXED[5], r(4, 5), "bounded_swiglu", 4)


ENDS = torch.tensor([4, 4, 11], dtype=torch.int32)


def b(*shape: int) -> Tensor:
    return r(*shape).bfloat16()


CALLS: dict[str, list[tuple[object, ...]]] = {
    "shardwise.linear.default": [(r(2, 3, 5), r(4, 5)), (r(6, 5), r(4, 5))],
    "shardwise.linear_weight.default": [(r(2, 3, 4), r(2, 3, 5)), (r(6, 4), r(6, 5))],
    "shardwise.linear_cross_entropy.default": [
        (r(3, 4, 5), r(7, 5), torch.arange(12).view(3, 4) * 5 % 7, 2, *wanted)
        for wanted in ((True, True), (True, False), (False, True), (False, False))
    ],
    "shardwise.experts.default": [MIXED, BIASED],
    "shardwise.experts_backward.default": [(r(6, 5), *MIXED), (r(6, 5), *BIASED)],
    "aten._grouped_mm.default": [
        (b(11, 8), b(3, 8, 24), ENDS),
        (b(11, 8).t(), b(11, 16), ENDS),
        (b(3, 9, 8), b(11, 8).t(), ENDS),
        (b(3, 9, 8), b(3, 8, 16)),
    ],
    "aten.view.default": [
        (r(8, 6, 4), [48, 4]),
        (r(8, 6, 4), [2, 4, 6, 4]),
        (r(6, 4), [8, 3]),
        (r(4, 1, 6), [4, 6]),
        (r(4, 6), [1, 4, 1, 3, 2]),
        (i(5, 6, 4), [-1]),
    ],
    "aten._unsafe_view.default": [(r(8, 6, 4), [8, 24])],
    "aten.reshape.default": [(r(8, 6, 4), [48, 4])],
    "aten.view_copy.default": [(r(8, 6, 4), [2, 4, 24])],
    "aten.flatten.using_ints": [(r(4, 6, 5), 1, 2)],
    "aten.unflatten.int": [(r(5, 8), 1, [2, 4])],
    "aten.unfold_backward.default": [(r(6, 5, 4, 2), [6, 6, 4], 1, 2, 1)],
    "aten.hardtanh_backward.default": [(r(4, 6), r(4, 6), -0.5, 0.5)],
    "aten.softshrink_backward.default": [(r(4, 6), r(4, 6), 0.5)],
    "aten.as_strided.default": [(r(8, 6), [7, 4], [3, 2]), (r(12), [4, 4], [2, 1])],
    "aten.as_strided_copy.default": [(r(8, 6), [7, 4], [3, 2])],
    "aten.expand_copy.default": [(r(1, 6), [9, 6])],
    "aten.expand.default": [(r(1, 6), [9, 6]), (r(6, 1), [5, 6, 9]), (r(1, 4, 6), [5, -1, -1])],
    "aten.repeat.default": [(r(1, 6), [9, 1]), (r(6, 4), [5, 1, 2])],
    "aten.slice_backward.default": [(r(8, 4, 5), [8, 6, 5], 1, 1, 5, 1), (r(8, 3), [8, 6], -1, 0, 6, 2)],
    "aten.select_backward.default": [
        (r(8, 5), [8, 6, 5], 1, 2),
        (
            r(
                9,
            ),
            [9, 5],
            -1,
            -1,
        ),
    ],
    "aten.full.default": [([9, 4], 2.0), ([9], 0), ([9], False)],
    "aten.zeros.default": [([9, 4],)],
    "aten.ones.default": [([9, 4],)],
    "aten.empty.memory_format": [([9, 4],)],
    "aten.empty_strided.default": [([9, 4], [1, 9])],
    "aten.new_zeros.default": [(r(8, 6), [9, 4])],
    "aten.new_full.default": [(r(8, 6), [9, 4], 3.0)],
    "aten.new_ones.default": [(r(8, 6), [9])],
    "aten.new_empty.default": [(r(8, 6), [9, 4])],
    "aten.new_empty_strided.default": [(r(8, 6), [9, 4], [1, 9])],
    "aten.scalar_tensor.default": [(3.0,)],
    "aten.arange.default": [(9,)],
    "aten.arange.start": [(2, 11)],
    "aten.arange.start_step": [(0, 27, 3), (1.0, 0.1, -0.1)],
    "aten.linspace.default": [(0.0, 1.0, 9)],
    "aten.eye.default": [(9,)],
    "aten.eye.m": [(9, 5)],
    "aten.tril_indices.default": [(3, 4, 0)],
    "aten.triu_indices.default": [(3, 4, 0)],
    "aten.tril.default": [(r(9, 5),), (r(4, 6, 5), 2)],
    "aten.triu.default": [(r(9, 5), -1), (r(4, 6, 5), 1)],
    "aten.embedding.default": [(r(12, 5), i(12, 4, 7)), (r(12, 5), i(12, 7), 3)],
    "aten.embedding_dense_backward.default": [
        (r(4, 7, 5), i(9, 4, 7), 9, -1, False),
        (r(7, 5), i(9, 7), 9, 2, False),
    ],
    "aten.gather.default": [
        (r(8, 6, 4), 1, i(6, 8, 5, 4)),
        (r(8, 6), -1, i(6, 5, 3)),
        (i(7, 8, 6), 1, i(6, 8, 1)),
    ],
    "aten.index_select.default": [(r(8, 6, 4), 1, i(6, 5)), (r(8, 6), -2, i(8, 5))],
    "aten.select.int": [(r(8, 6, 4), 1, 2), (r(9, 5), -2, -1), (r(9, 5) > 0.5, 0, 1)],
    "aten.fractional_max_pool2d.default": [
        (r(4, 6, 9, 8), [2, 2], [4, 3], r(4, 6, 2)),
        (r(6, 9, 8), [2, 2], [4, 3], r(1, 6, 2)),
    ],
    "aten.fractional_max_pool3d.default": [
        (r(4, 6, 9, 8, 7), [2, 2, 2], [4, 3, 2], r(4, 6, 3)),
        (r(6, 9, 8, 7), [2, 2, 2], [4, 3, 2], r(1, 6, 3)),
    ],
    "aten.index.Tensor": [
        (r(8, 6, 4), [None, i(6, 5, 3)]),
        (r(8, 6, 4), [i(8, 5, 1), None, i(4, 3)]),
        (r(8, 6, 4), [i(8, 5), i(6, 5)]),
        (r(6, 3, 4), [None, i(3, 5), i(4, 5)]),
        (r(8, 6), [None, torch.tensor(3)]),
    ],
    "aten._unsafe_index.Tensor": [(r(2, 6, 4, 5), [None, None, i(4, 7, 1), i(5, 9)])],
    "aten.index_put.default": [
        (r(8, 6, 4), [None, torch.tensor([3, 1])], r(8, 2, 4), True),
        (r(8, 6, 4), [torch.tensor([0, 3, 7])], r(3, 6, 4), False),
        (r(8, 6, 4), [torch.tensor([0, 3, 7])], r(1, 4), True),
        (r(6, 3, 4), [None, i(3, 5), i(4, 5)], r(6, 5), True),
    ],
    "aten._unsafe_index_put.default": [
        (r(2, 6, 4, 5), [None, None, i(4, 7, 1), i(5, 9)], r(2, 6, 7, 9), True)
    ],
    "aten.scatter.value": [
        (r(8, 6, 4), 1, i(6, 8, 5, 4), 2.0),
        (r(8, 6), -1, i(6, 8, 1), 0),
        (r(8, 6), 1, i(6, 5, 3), 2.0),
    ],
    "aten.scatter.src": [(r(9, 6, 5), 1, torch.arange(3).expand(9, 5, 3).mT + 1, r(9, 3, 5))],
    "aten.scatter_add.default": [
        (r(8, 6, 4), 1, i(6, 8, 5, 4), r(8, 5, 4)),
        (r(8, 6), 0, i(8, 5, 6), r(7, 6)),
    ],
    "aten.convolution.default": [
        (r(4, 6, 7, 7), r(8, 6, 3, 3), r(8), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        (r(4, 6, 9), r(5, 6, 1), r(5), [1], [0], [1], False, [0], 1),
        (r(4, 6, 5, 5), r(12, 1, 3, 3), r(12), [1, 1], [1, 1], [1, 1], False, [0, 0], 6),
        (r(4, 8, 5, 5), r(12, 4, 3, 3), r(12), [1, 1], [1, 1], [1, 1], False, [0, 0], 2),
    ],
    "aten.convolution_backward.default": [
        convolved(r(4, 6, 7, 7), r(8, 6, 3, 3), True, 1, 1, 1),
        convolved(r(4, 6, 5, 5), r(12, 1, 3, 3), True, 1, 1, 6),
    ],
    "shardwise.rms_norm.default": [(r(4, 5, 6), [6], r(6), 1e-6), (r(4, 5, 6), [5, 6], r(5, 6), 1e-6)],
    "shardwise.rms_norm_backward.default": [
        (r(4, 5, 6), r(4, 5, 6), [6], r(4, 5, 1), r(6)),
    ],
    "shardwise.attention.default": [
        (Q, K, V, *PLAIN),
        (Q, K, V, *CAUSAL),
        (Q, K2, V2, *CAUSAL),
        (Q, r(2, 1, 9, 6), V1, *PLAIN),
        (Q, K, V, r(2, 1, 9, 9) > 0.3, *CAUSAL[1:]),
        (Q, K, V, r(4, 9, 9), *PLAIN[1:]),
        (Q, K, V, r(4, 9, 9), *CAUSAL[1:]),
    ],
    "aten.native_layer_norm.default": [
        (r(4, 6, 8), [8], r(8), r(8), 1e-5),
        (r(4, 6, 8), [6, 8], None, None, 1e-5),
        (r(4, 6), [6], r(6), None, 1e-5),
    ],
    "aten.native_layer_norm_backward.default": [normalised(r(4, 6, 8), r(4, 6, 8), [8], r(8), r(8))],
    "aten.native_group_norm.default": [
        (r(4, 12, 5), r(12), r(12), 4, 12, 5, 6, 1e-5),
        (r(4, 12, 3, 5), None, None, 4, 12, 15, 4, 1e-5),
    ],
    "aten._fft_c2c.default": [(c(4, 6, 9), [1], 0, True), (c(4, 6, 9), [0, 2], 2, False)],
    "aten._fft_r2c.default": [(r(4, 6, 9), [2], 0, True)],
    "aten.replication_pad1d.default": [(r(6, 5), [1, 2])],
    "aten.replication_pad2d.default": [(r(4, 6, 5, 7), [1, 2, 0, 1])],
    "aten.replication_pad3d.default": [(r(4, 6, 5, 7, 3), [1, 0, 0, 1, 1, 1])],
    "aten.reflection_pad1d.default": [(r(4, 6, 5), [1, 2])],
    "aten.reflection_pad2d.default": [(r(4, 6, 5, 7), [1, 2, 0, 1])],
    "aten.reflection_pad3d.default": [(r(6, 5, 7, 3), [1, 0, 0, 1, 1, 1])],
    "aten.slice_scatter.default": [(r(8, 6, 5), r(8, 2, 5), 1, 1, 3, 1), (r(9, 6), r(9, 3), -1, 0, 6, 2)],
    "aten.binary_cross_entropy.default": [
        (r(8, 6), r(8, 6).flip(0), None, 0),
        (r(8, 6), r(8, 6).flip(0), r(6), 2),
        (r(8, 6), r(8, 6).flip(0), r(8, 6), 1),
    ],
    "aten.binary_cross_entropy_with_logits.default": [
        (r(8, 6), r(8, 6).flip(0), None, None, 0),
        (r(8, 6), r(8, 6).flip(0), r(6), None, 2),
        (r(8, 6), r(8, 6).flip(0), r(8, 6), r(6), 0),
        (r(8, 6), r(8, 6).flip(0), r(8, 1), r(6), 1),
        (r(8, 6), r(8, 6).flip(0), None, r(1), 2),
    ],
    "aten.mse_loss_backward.default": [
        (r(8, 6), r(8, 6).flip(0), r(8, 6).flip(1), 0),
        (r(), r(8, 6), r(8, 6).flip(1), 1),
        (r(), r(8, 6), r(8, 6).flip(1), 2),
        (r(6), r(8, 6), r(8, 6).flip(1), 2),
    ],
    "aten.constant_pad_nd.default": [(r(4, 6, 5), [1, 2], 0.0), (r(4, 6, 5), [0, 0, 1, 0], 3.0)],
    "aten.elu_backward.default": [(r(9, 5), 1.2, 1.0, 1.0, flag, r(9, 5)) for flag in (False, True)],
    "aten.histc.default": [(r(9, 5), 10, -1, 1), (r(6), 4, 0, 0)],
    "aten._unsafe_masked_index.default": [
        (r(9, 5), i(2, 6, 4).bool(), [i(5, 6, 4), i(5, 6, 4)], 0.5),
        (r(9, 5), i(2, 6, 4).bool(), [i(5, 6, 1), i(5, 6, 4)], 0.5),
    ],
    "aten.upsample_bicubic2d.default": [(r(4, 6, 5, 7), [10, 8], True, None, None)],
    "aten.upsample_trilinear3d.default": [(r(4, 6, 3, 5, 2), [7, 8, 5], False, 2.0, 1.5, None)],
    "aten.upsample_linear1d_backward.default": [upsampled([4, 6, 5], [10], True)],
    "aten.upsample_bilinear2d_backward.default": [upsampled([4, 6, 5, 7], [10, 8], False)],
    "aten.upsample_bicubic2d_backward.default": [upsampled([4, 6, 5, 7], [10, 8], True)],
    "aten.upsample_trilinear3d_backward.default": [upsampled([4, 6, 3, 5, 2], [7, 8, 5], False)],
    "aten._upsample_bilinear2d_aa_backward.default": [upsampled([4, 6, 5, 7], [10, 8], False)],
    "aten._upsample_bicubic2d_aa_backward.default": [upsampled([4, 6, 5, 7], [10, 8], False)],
    "aten.upsample_nearest1d_backward.default": [upsampled([4, 6, 5], [10])],
    "aten.upsample_nearest2d_backward.default": [upsampled([4, 6, 5, 7], [10, 8])],
    "aten.upsample_nearest3d_backward.default": [upsampled([4, 6, 3, 5, 2], [7, 8, 5])],
    "aten._upsample_nearest_exact1d_backward.default": [upsampled([4, 6, 5], [10])],
    "aten._upsample_nearest_exact2d_backward.default": [upsampled([4, 6, 5, 7], [10, 8])],
    "aten._upsample_nearest_exact3d_backward.default": [upsampled([4, 6, 3, 5, 2], [7, 8, 5])],
    "aten.nll_loss_forward.default": [
        (r(9, 5), i(5, 9), None, 0, -100),
        (r(9, 5), i(5, 9), None, 1, -100),
        (r(9, 5), i(5, 9), r(5), 2, 2),
    ],
    "aten.nll_loss2d_forward.default": [
        (r(3, 5, 4, 6), i(5, 3, 4, 6), r(5), 0, 2),
        (r(3, 5, 4, 6), i(5, 3, 4, 6), r(5), 1, -100),
        (r(3, 5, 4, 6), i(5, 3, 4, 6), None, 2, -100),
    ],
    "aten._cdist_backward.default": [
        *(far(r(5, 4), r(6, 4), p) for p in (0.5, 1.0, 2.0, math.inf)),
        *(far(r(4, 5, 3), r(4, 6, 3), p) for p in (1.0, 3.0)),
        far(r(4, 5, 3), r(6, 3), 3.0),
        far(r(1, 5, 3), r(4, 6, 3), 2.0),
    ],
}
# Integers that kernels trust (offsets ascend, indices are in range), and sizes that must fit each other (windows side
# by side, whole groups of channels), and values that would overflow if they were drawn apart (the logarithm of a sum):
# here experiments keep the sizes and integers of the call, and draw normal values.
AS_GIVEN: dict[str, list[tuple[object, ...]]] = {
    "shardwise.attention_backward.default": [
        saved(Q, K, V, *PLAIN),
        saved(Q, K, V, *CAUSAL),
        saved(Q, K2, V2, *CAUSAL),
        saved(Q, r(2, 1, 9, 6), V1, *PLAIN),
        saved(Q, K, V, r(2, 1, 9, 9) > 0.3, *CAUSAL[1:]),
        saved(Q, K, V, r(4, 9, 9), *PLAIN[1:]),
    ],
    "aten.native_group_norm_backward.default": [
        grouped(r(4, 12, 5), r(12), 6, [True, True, True]),
        grouped(r(4, 12, 3, 5), None, 4, [True, False, False]),
    ],
    "aten.embedding_dense_backward.default": [(r(7, 5), i(9, 7), 9, -1, True)],
    "aten.avg_pool2d_backward.default": [
        (r(4, 6, 3, 4), r(4, 6, 6, 8), [2, 2], [2, 2], [0, 0], False, True, None)
    ],
    "aten._trilinear.default": [
        (r(6, 4), r(3, 4, 5), r(6, 5), [1, 3], [0], [1, 2], [2, 3]),
        (r(4, 4), r(4, 4, 4), r(4, 4), [1, 3], [0], [1, 2], [2, 3]),
        (r(6, 4), r(6, 4), r(6, 4), [], [], [], [0]),
    ],
    "aten._adaptive_avg_pool2d_backward.default": [
        (r(4, 6, 3, 2), r(4, 6, 9, 8)),
        (r(6, 3, 2), r(6, 9, 8)),
    ],
    "aten._adaptive_avg_pool3d_backward.default": [(r(4, 6, 3, 2, 2), r(4, 6, 9, 8, 4))],
    "aten.avg_pool3d_backward.default": [
        (r(4, 6, 3, 2, 2), r(4, 6, 6, 4, 4), [2] * 3, [2] * 3, [0] * 3, False, True, None)
    ],
    "aten.reflection_pad1d_backward.default": [padded("reflection", r(4, 6, 7), 1, 1)],
    "aten.reflection_pad2d_backward.default": [padded("reflection", r(4, 6, 7, 5), 1, 1, 0, 2)],
    "aten.reflection_pad3d_backward.default": [padded("reflection", r(4, 6, 3, 5, 4), 1, 1, 0, 2, 1, 0)],
    "aten.replication_pad1d_backward.default": [padded("replication", r(6, 7), 1, 3)],
    "aten.replication_pad2d_backward.default": [padded("replication", r(4, 6, 7, 6), 1, 0, 1, 1)],
    "aten.replication_pad3d_backward.default": [padded("replication", r(4, 6, 3, 5, 4), 1, 1, 0, 2, 1, 0)],
    "aten.max_pool2d_with_indices_backward.default": [pooled(r(5, 7, 6, 8)), pooled(r(9, 6, 6))],
    "aten.max_pool3d_with_indices_backward.default": [pooled(r(5, 7, 4, 6, 8), 3)],
    "aten.adaptive_max_pool2d_backward.default": [pooled_adaptively(r(4, 6, 9, 8), [3, 2])],
    "aten.adaptive_max_pool3d_backward.default": [pooled_adaptively(r(6, 5, 9, 8), [2, 3, 2])],
    "aten.fractional_max_pool2d_backward.default": [pooled_fractionally(r(4, 6, 9, 8), [3, 2])],
    "aten.fractional_max_pool3d_backward.default": [pooled_fractionally(r(4, 6, 5, 9, 8), [2, 3, 2])],
    "aten._reshape_alias.default": [(r(9, 6, 4), [9, 24], [24, 1]), (r(12, 6, 4), [72, 4], [4, 1])],
    "aten.convolution.default": [
        (r(4, 6, 24, 9), r(5, 6, 2, 3), None, [2, 3], [0, 0], [1, 1], False, [0, 0], 1),
        (r(4, 6, 9, 12), r(6, 8, 2, 2), r(8), [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
        (r(4, 6, 5, 5), r(6, 2, 3, 3), None, [1, 1], [1, 1], [1, 1], True, [0, 0], 6),
        (r(4, 8, 5, 5), r(12, 2, 3, 3), r(12), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
        (r(4, 12, 5, 5), r(24, 1, 3, 3), r(24), [1, 1], [1, 1], [1, 1], False, [0, 0], 12),
    ],
    "aten.convolution_backward.default": [
        convolved(r(4, 6, 24, 24), r(5, 6, 2, 2), False, 2, 0, 1),
        convolved(r(4, 6, 12, 12), r(6, 8, 2, 2), True, 2, 0, 1, transposed=True),
        convolved(r(4, 12, 5, 5), r(12, 2, 3, 3), True, 1, 1, 12, transposed=True),
        convolved(r(4, 8, 5, 5), r(12, 2, 3, 3), True, 1, 1, 4),
    ],
    "aten._embedding_bag.default": [
        (*BAGS,),
        (*BAGS, False, 1),
        (*BAGS, False, 1, False, None, False, 4),
        (*BAGS, False, 2),
    ],
    "aten._embedding_bag_forward_only.default": [(*BAGS, False, 1), (*BAGS, False, 2)],
    "aten.native_batch_norm.default": [
        (r(8, 6, 5), r(6), r(6), r(6), r(6) + 0.5, True, 0.1, 1e-5),
        (r(8, 6, 5, 4), r(6), r(6), r(6), r(6) + 0.5, False, 0.1, 1e-5),
        (r(8, 6), None, None, r(6), r(6) + 0.5, False, 0.1, 1e-5),
    ],
    "aten._native_batch_norm_legit.default": [(r(8, 6, 5), r(6), None, r(6), r(6) + 0.5, True, 0.1, 1e-5)],
    "aten._native_batch_norm_legit_functional.default": [
        (r(8, 6, 5), r(6), r(6), r(6), r(6) + 0.5, True, 0.1, 1e-5)
    ],
    "aten._native_batch_norm_legit.no_stats": [(r(8, 6, 5), r(6), r(6), True, 0.1, 1e-5)],
    "aten._native_batch_norm_legit_no_training.default": [
        (r(8, 6, 5), r(6), r(6), r(6), r(6) + 0.5, 0.1, 1e-5)
    ],
    "aten._batch_norm_no_update.default": [(r(8, 6, 5), r(6), r(6), r(6), r(6) + 0.5, 0.1, 1e-5)],
    "aten._batch_norm_with_update.default": [(r(8, 6, 5), r(6), r(6), r(6), r(6) + 0.5, 0.1, 1e-5)],
    "aten.native_batch_norm_backward.default": [
        batched(r(4, 6, 5), r(6), True, [True, True, True]),
        batched(r(4, 6, 5), r(6), False, [True, True, True]),
        batched(r(4, 6), None, True, [True, False, False]),
    ],
    "aten._fft_c2r.default": [(c(4, 6, 5), [2], 2, 8)],
    "aten.fill.Tensor": [(r(9, 6), r()), (i(5, 9), torch.tensor(3))],
    "aten.nll_loss_backward.default": [
        (r(9), r(9, 5), i(5, 9), None, 0, -100, r()),
        (r(), r(9, 5), i(5, 9), r(5), 1, 2, r() + 1),
        (r(), r(9, 5), i(5, 9), r(5), 2, -100, r() + 1),
    ],
    "aten.nll_loss2d_backward.default": [
        (r(3, 4, 6), r(3, 5, 4, 6), i(5, 3, 4, 6), None, 0, -100, r()),
        (r(), r(3, 5, 4, 6), i(5, 3, 4, 6), r(5), 1, 2, r() + 1),
    ],
    "aten._embedding_bag_per_sample_weights_backward.default": [weighted_bags()],
    "aten._embedding_bag_backward.default": [bagged(0), bagged(1), bagged(1, 4)],
    "aten._embedding_bag_dense_backward.default": [bagged_densely(0), bagged_densely(1, 4)],
}
CASES = [(op, args) for op, calls in CALLS.items() for args in calls]


def rows_of(op: str, args: tuple[object, ...], kwargs: dict[str, object] | None = None) -> list[Row]:
    kwargs = kwargs or {}
    results = pytree.tree_leaves(overload(op)(*args, **kwargs), is_leaf=lambda leaf: leaf is None)
    shapes = [None if o is None else tuple(o.shape) for o in results]
    rows = hand_rows(Call(overload(op), args, kwargs, shapes))
    assert rows is not None
    return rows


def test_a_slice_that_is_all_of_a_dim_is_put_in_place_piece_by_piece():
    args = (r(8, 6), r(8, 6), 1)
    row = Row.parse("S(1), S(1) -> S(1)")
    assert row in rows_of("aten.slice_scatter.default", args)
    assert sw.check(overload("aten.slice_scatter.default"), row, *args)


def described(value: object) -> str:
    if isinstance(value, str):
        return value.removeprefix("aten.").removesuffix(".default")
    leaves = pytree.tree_leaves(value)
    return " ".join(str(tuple(leaf.shape)) for leaf in leaves if isinstance(leaf, Tensor))


# Calls that a rule once gave these rows, though they do not hold: tensors of other shapes than operators expect, which
# kernels take all the same, dtypes that have no sums, a single sample.
NOT_GIVEN: list[tuple[str, tuple[object, ...], str]] = [
    ("aten.scatter_add.default", (r(5) > 0.5, 0, i(5, 3), r(3) > 0.5), "P(sum), S(0), S(0) -> P(sum)"),
    ("aten.index_put.default", (r(5) > 0.5, [i(5, 3)], r(3) > 0.5, True), "P(sum), S(0), S(0) -> P(sum)"),
    (
        "aten.embedding_dense_backward.default",
        (r(7, 5) > 0.5, i(9, 7), 9, -1, False),
        "S(0), S(0) -> P(sum)",
    ),
    ("aten.slice_backward.default", (r(2, 5), [4, 5, 5], 1, 0, 2, 1), "S(1) -> S(1) with local sizes"),
    ("aten.select_backward.default", (r(5), [4, 5, 5], 1, 0), "S(0) -> S(0) with local sizes"),
    ("aten.nll_loss_forward.default", (r(3), i(3), r(3), 0, -100), "R, R, P(sum) -> P(sum), R"),
    (
        "aten.native_layer_norm_backward.default",
        (r(5, 3), r(5, 3), [3], r(5, 3), r(5, 3), r(3), r(3), [True] * 3),
        "S(0), S(0), S(0), S(0), R, R -> S(0), P(sum), P(sum)",
    ),
    (
        "aten._adaptive_avg_pool3d_backward.default",
        (r(2, 3, 3, 3, 3, 3), r(2, 3, 3, 4, 4, 4)),
        "S(1), S(1) -> S(1) for nonempty shards",
    ),
    (
        "shardwise.attention.default",
        (r(2, 6, 5, 4), r(2, 1, 5, 4), r(1, 5, 3), *PLAIN),
        "S(0), S(0), S(0) -> S(0), S(0)",
    ),
    (
        "shardwise.attention_backward.default",
        (*saved(Q, r(2, 1, 9, 6), V1, *PLAIN)[:5], r(2, 1, 9), *PLAIN),
        "S(1), S(1), R, R, S(1), S(1) -> S(1), P(sum), P(sum)",
    ),
    (
        "aten._adaptive_avg_pool3d_backward.default",
        (r(3, 2, 5, 8, 2), r(3, 1, 8, 8, 6)),
        "S(0), S(0) -> S(0) for nonempty shards",
    ),
    (
        "aten.avg_pool3d_backward.default",
        (i(9, 1, 1, 2, 2, 2), i(9, 1, 1, 4, 5, 4), [2, 2, 3], [2, 2, 1], [0] * 3, False, True, -2),
        "P(sum), R -> P(sum)",
    ),
    (
        "aten._embedding_bag_dense_backward.default",
        (r(4, 4, 5), *bagged_densely(0)[1:]),
        "S(1), R, R, R, R -> S(1)",
    ),
    ("aten.binary_cross_entropy.default", (r(5), r(1), None, 0), "S(0), S(0) -> S(0)"),
    (
        "aten.embedding_dense_backward.default",
        (r(1, 4, 5, 5, 5), i(9, 4, 5, 5), 10, -1, False),
        "S(3), R -> S(1)",
    ),
    (
        "aten.native_layer_norm_backward.default",
        (i(9, 0, 1), r(0, 1), [1], r(0, 1), r(0, 1), None, r(1), [True, False, True]),
        "P(avg), R, R, R, R -> P(avg), -, P(avg)",
    ),
    ("aten.unfold_backward.default", (r(1, 2, 10), [5, 5, 5, 5], 1, 10, 2), "S(2) -> S(2) with local sizes"),
    ("aten.scatter_add.default", (r(4, 5), 0, i(4, 0), r(0)), "S(1), S(1), S(1) -> S(1)"),
    ("aten.reflection_pad1d_backward.default", (r(0, 3, 4), i(9, 0, 3, 3), [0, 1]), "P(avg), R -> P(avg)"),
]


@pytest.mark.parametrize(("op", "args", "row"), NOT_GIVEN, ids=described)
def test_rows_are_not_given_where_they_do_not_hold(op, args, row):
    call = independent.Call.of(overload(op), args, {})
    given = [row.text for row in rows_of(op, args)]
    assert row not in given and not independent.check(call, given, "0").refuted
    assert independent.check(call, [row], "0").refuted


@pytest.mark.parametrize(("op", "args"), CASES, ids=described)
def test_every_row_holds(op, args):
    refuted = []
    for row in rows_of(op, args):
        verdict = sw.check(overload(op), row, *args)
        held = verdict.shards
        if not verdict or held is None or SHARDS.index(held) > SHARDS.index(row.shards):
            refuted.append(f"{row} for {row.shards}, {row.local}: {held} {verdict.reason}")
    assert refuted == []


def implied(found: Row, known: list[Row]) -> bool:
    """True if a row that discovery found follows from a known one: R is a case of P(avg), P(max) and P(min)."""
    return any(
        SHARDS.index(row.shards) <= SHARDS.index(found.shards)
        and all(
            a == b or (is_replicate(b) and keeps(a)) for a, b in zip(row.inputs, found.inputs, strict=True)
        )
        and all(
            a == b or (is_replicate(a) and keeps(b)) for a, b in zip(row.outputs, found.outputs, strict=True)
        )
        for row in known
    )


def keeps(placement) -> bool:
    return is_partial(placement) and placement.reduce_op != "sum"


# Inputs that give a shape or a dtype only, of some calls at least: whether they are partial is not asked.
IGNORED = {"aten.native_layer_norm_backward.default": 5, "aten._cdist_backward.default": 3} | dict.fromkeys(
    (op for op in CALLS if op.startswith("aten.new_")), 0
)


# Many inputs make many combinations: these take seconds each.
SLOW = ("convolution", "attention", "layer_norm_backward", "experts")
LISTED = [
    pytest.param(op, args, marks=[pytest.mark.long] * any(word in op for word in SLOW)) for op, args in CASES
]


@pytest.mark.parametrize(("op", "args"), LISTED, ids=described)
def test_no_row_that_discovery_finds_is_missing(op, args):
    found = sw.discover(overload(op), *args)
    rows = [row for row in found.rows if op not in IGNORED or not is_partial(row.inputs[IGNORED[op]])]
    if op.startswith("aten._fft_"):  # torch 2.15 transforms empty batches, too: the rule is for every torch
        rows = [replace(row, shards="nonempty") if row.shards == "any" else row for row in rows]
    known = rows_of(op, args)
    assert [f"{row} for {row.shards}" for row in rows if not implied(row, known)] == []


@pytest.mark.parametrize(
    ("op", "args"), [(op, args) for op, calls in AS_GIVEN.items() for args in calls], ids=described
)
def test_every_row_holds_for_the_call_as_it_is(assert_rows_hold, op, args):
    tried = 0
    for ranks, way in product([2, 3, 4], WAYS):
        drawn = pytree.tree_map(lambda leaf: torch.randn_like(leaf) if is_float(leaf) else leaf, list(args))
        tried += assert_rows_hold(op, drawn, {}, ranks, way)
    assert tried > 0


def is_float(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.bool,
)


@pytest.mark.parametrize("after", DTYPES, ids=str)
@pytest.mark.parametrize("before", DTYPES, ids=str)
def test_copies_to_another_dtype(before, after):
    op, x = torch.ops.aten._to_copy.default, (r(6, 9) * 20 - 10).to(before)
    known = hand_rows(Call(op, (x,), {"dtype": after}, [(6, 9)]))
    assert [str(row) for row in known if not sw.check(op, row, x, dtype=after)] == []
    # Which integer an infinity becomes depends on the machine, and that no sum wrapped around on the values.
    wraps = not (before.is_floating_point or before.is_complex)
    found = sw.discover(op, x, dtype=after).rows if after.is_floating_point or after.is_complex else []
    found = [row for row in found if not (wraps and row.text == "P(sum) -> P(sum)")]
    assert [str(row) for row in found if not implied(row, known)] == []


def test_a_copy_to_a_device_is_looked_up_without_going_there():
    x = torch.empty(4, 6, device="meta")
    rows = sw.rows(torch.ops.aten._to_copy.default, x, device=torch.device("cpu"), dtype=torch.bfloat16)
    assert [str(row) for row in rows[:2]] == ["S(0) -> S(0)", "S(1) -> S(1)"]


@st.composite
def views(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """A shape, and another of as many elements."""
    factors = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=5))

    def gathered(numbers: list[int]) -> list[int]:
        cuts = draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers)))
        shape = [1]
        for number, cut in zip(numbers, cuts, strict=True):
            shape = [*shape, number] if cut else [*shape[:-1], shape[-1] * number]
        return shape

    return gathered(factors), gathered(draw(st.permutations(factors)))


@settings(deadline=None, max_examples=60)
@given(views(), st.sampled_from([2, 3, 4]))
def test_rows_of_any_view_hold(assert_rows_hold, shapes, ranks):
    before, after = shapes
    values = torch.arange(math.prod(before), dtype=torch.float64).reshape(before)
    assert_rows_hold("aten.view.default", (values, after), {}, ranks, "uneven")


NEW = {"generator": None}
RANDOM: dict[str, tuple[tuple[object, ...], dict[str, object]]] = {
    "aten._standard_gamma.default": ((r(9, 5) + 0.5,), {}),
    "aten.alpha_dropout.default": ((r(9, 5), 0.5, True), {}),
    "aten.bernoulli.default": ((r(9, 5),), {}),
    "aten.bernoulli.p": ((r(9, 5), 0.5), {}),
    "aten.bernoulli.Tensor": ((r(9, 5), r(5)), {}),
    "aten.binomial.default": ((r(9, 5) * 10, r(9, 5)), {}),
    "aten.cauchy.default": ((r(9, 5),), {}),
    "aten.dropout.default": ((r(9, 5), 0.5, True), {}),
    "aten.exponential.default": ((r(9, 5),), {}),
    "aten.geometric.default": ((r(9, 5), 0.5), {}),
    "aten.log_normal.default": ((r(9, 5),), {}),
    "aten.multinomial.default": ((r(9, 5), 3), {}),
    "aten.native_dropout.default": ((r(7, 5), 0.5, True), {}),
    "aten.normal.Tensor_float": ((r(9, 5),), {}),
    "aten.normal.Tensor_Tensor": ((r(9, 5), r(5)), {}),
    "aten.normal.float_Tensor": ((0.0, r(9, 5)), {}),
    "aten.normal.float_float": ((0.0, 1.0, [9, 5]), {}),
    "aten.normal_functional.default": ((r(9, 5),), {}),
    "aten.poisson.default": ((r(9, 5),), {}),
    "aten.rand.default": (([9, 5],), {}),
    "aten.rand.generator": (([9, 5],), NEW),
    "aten.rand_like.default": ((r(9, 5),), {}),
    "aten.rand_like.generator": ((r(9, 5),), NEW),
    "aten.randint.default": ((7, [9]), {}),
    "aten.randint.generator": ((7, [9, 5]), NEW),
    "aten.randint.low": ((2, 7, [9, 5]), {}),
    "aten.randint.low_generator": ((2, 7, [9, 5]), NEW),
    "aten.randint_like.default": ((r(9, 5), 7), {}),
    "aten.randint_like.generator": ((r(9, 5), 7), NEW),
    "aten.randint_like.low_dtype": ((r(9, 5), 2, 7), {}),
    "aten.randint_like.low_generator_dtype": ((r(9, 5), 2, 7), NEW),
    "aten.randint_like.Tensor": ((r(9, 5), torch.tensor(7)), {}),
    "aten.randint_like.Tensor_generator": ((r(9, 5), torch.tensor(7)), NEW),
    "aten.randn.default": (([9, 5],), {}),
    "aten.randn.generator": (([9, 5],), NEW),
    "aten.randn_like.default": ((r(9, 5),), {}),
    "aten.randn_like.generator": ((r(9, 5),), NEW),
    "aten.random.default": ((r(9, 5),), {}),
    "aten.random.from": ((r(9, 5), 2, 7), {}),
    "aten.random.to": ((r(9, 5), 7), {}),
    "aten.rrelu_with_noise_functional.default": ((r(9, 5) - 0.5, r(9, 5), 0.1, 0.3, True), {}),
    "aten.uniform.default": ((r(9, 5),), {}),
}


@pytest.mark.parametrize("op", RANDOM)
@pytest.mark.parametrize("ranks", [2, 3])
def test_random_operators_draw_their_pieces(op, ranks):
    args, kwargs = RANDOM[op]
    call = Call(overload(op), args, kwargs)
    experiment = Experiment(call, ranks, "given", call.tensors, "uneven")
    rows = rows_of(op, args, kwargs)
    assert rows
    for row in rows:
        local = experiment.run(row.inputs, row.local, row.outputs)
        for expected, pieces, placement in zip(experiment.outputs, local, row.outputs, strict=True):
            whole = torch.from_numpy(expected.array)
            assert [p.shape for p in pieces] == [tuple(s.shape) for s in split(whole, placement, ranks)]


# They have no kernel on a CPU.
ON_GPU_ONLY = {"aten._fused_dropout.default": (r(9, 5), 0.5)}


def test_every_hand_written_rule_is_tested_on_a_call():
    tested = {*CALLS, *AS_GIVEN, *RANDOM, *ON_GPU_ONLY, "aten._to_copy.default"}
    assert set(hand_written()) - tested == set()
    for op, args in ON_GPU_ONLY.items():
        with pytest.raises(NotImplementedError):
            overload(op)(*args)


# Kernels of one device, choices between them and nested tensors, which graphs do not hold; one that has no rows, and
# one whose draws depend on each other along its last dim.
NOT_RULED = (
    *("attention", "rnn", "lstm", "gru", "_cudnn_init_dropout_state", "_fused_sdp_choice", "_nested_tensor"),
    *("randperm", "_sample_dirichlet"),
    *(
        "rand.names",
        "rand.generator_with_names",
        "randn.names",
        "randn.generator_with_names",
    ),  # until torch 2.12
)


def test_every_random_operator_has_a_rule():
    names = {
        s.name.removeprefix("aten::") for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")
    }
    packets = (getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name))
    overloads = (getattr(p, o) for p in packets for o in p.overloads())
    random = {
        str(op)
        for op in overloads
        if torch.Tag.nondeterministic_seeded in op.tags
        and not op._schema.is_mutable
        and not op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    }
    assert len(random) > 40
    missing = random - set(hand_written())
    assert [op for op in sorted(missing) if not any(word in op for word in NOT_RULED)] == []


def test_a_transformed_dim_counted_from_the_end_has_no_rows():
    """Torch's functions count them from the front; on others the kernel of several dims computes something else."""
    rows = {
        dim: sw.rows(torch.ops.aten._fft_r2c.default, torch.rand(4, 6), [dim], 0, True) for dim in (1, -1)
    }
    assert "S(0) -> S(0)" in map(str, rows[1]) and not rows[-1]


def test_attention_of_mixed_dtypes_has_no_rows():
    query, key = torch.rand(2, 4, 6, 8), torch.ones(2, 4, 6, 8, dtype=torch.int64)
    call = Call.of(torch.ops.shardwise.attention.default, query, key, key, None, None, False, 1.0, 0.0)
    assert hand_rows(call) == []
    call = Call.of(
        torch.ops.shardwise.attention.default, query, query, query, key[..., :6], None, False, 1.0, 0.0
    )
    assert hand_rows(call) == []
