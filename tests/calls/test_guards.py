"""Guards tell calls that operators are meant for from others, by shapes and dtypes alone."""

from dataclasses import dataclass

import pytest
import torch

from shardwise.calls import facts, overload


@dataclass(frozen=True)
class Described:
    """A tensor as planning knows it."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


def t(*shape: int, dtype: torch.dtype = torch.float32) -> Described:
    return Described(shape, dtype)


def i(*shape: int) -> Described:
    return t(*shape, dtype=torch.int64)


WINDOW = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3)
NORM = (True, 1e-5, [True] * 3)
BAGS = (10, False, 0, False, None)
RESAMPLED = ([8, 8], [2, 3, 4, 4], False)

# Each operator with arguments that fit, and with some that do not.
CALLS = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": [
        (t(2, 4, 5, 8), t(2, 2, 5, 8), t(2, 2, 5, 8)),
        (t(2, 4, 5, 8), t(2, 3, 5, 8), t(2, 3, 5, 8)),
    ],
    "aten.native_batch_norm_backward.default": [
        (t(4, 3, 5), t(4, 3, 5), t(3), None, None, t(3), t(3), *NORM),
        (t(4, 3, 5), t(4, 3, 5), t(5), None, None, t(3), t(3), *NORM),
    ],
    "aten.batch_norm_backward.default": [
        (t(4, 3, 5), t(4, 3, 5), t(3), None, None, t(3), t(3), *NORM, t(0, dtype=torch.uint8)),
        (t(4, 3, 5), t(4, 3, 5), t(3), None, None, t(2), t(3), *NORM, t(0, dtype=torch.uint8)),
    ],
    "aten.convolution_backward.default": [
        (t(2, 4, 6, 6), t(2, 3, 8, 8), t(4, 3, 3, 3), None, *WINDOW),
        (t(2, 4, 7, 6), t(2, 3, 8, 8), t(4, 3, 3, 3), None, *WINDOW),
    ],
    "aten.avg_pool2d_backward.default": [
        (t(2, 3, 4, 4), t(2, 3, 8, 8), [2, 2], [], [0, 0], False, True, None),
        (t(2, 3, 5, 4), t(2, 3, 8, 8), [2, 2], [], [0, 0], False, True, None),
    ],
    "aten.max_pool3d_with_indices_backward.default": [
        (t(3, 2, 2, 2), t(3, 4, 4, 4), [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, i(3, 2, 2, 2)),
        (t(3, 2, 2, 2), t(3, 4, 4, 4), [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, i(3, 2, 2, 1)),
        (t(3, 2, 2, 2), t(3, 4, 4, 4), [2] * 3, [1] * 3, [0] * 3, [1] * 3, False, i(3, 2, 2, 2)),
    ],
    "aten._embedding_bag_backward.default": [
        (t(3, 4), i(8), i(3), i(0), i(3), i(3), *BAGS),
        (t(3, 4), i(8), i(3), i(7), i(3), i(3), *BAGS),
        (t(2, 4), i(8), i(3), i(8), i(3), i(3), *BAGS),
    ],
    "aten._embedding_bag_per_sample_weights_backward.default": [
        (t(3, 4), t(10, 4), i(8), i(3), i(8), 0),
        (t(3, 4), t(10, 4), i(8), i(3), i(6), 0),
    ],
    "aten.select_backward.default": [
        (t(4, 6), [4, 5, 6], 1, 2),
        (t(1, 6), [4, 5, 6], 1, 2),
        (t(6), [4, 5, 6], -2, 2),
    ],
    "aten.slice_backward.default": [
        (t(4, 2, 6), [4, 5, 6], -2, 1, 9, 2),
        (t(4, 1, 6), [4, 5, 6], 1, 1, 9, 2),
    ],
    "aten._cdist_backward.default": [
        (t(3, 4, 5), t(4, 6), t(3, 5, 6), 2.0, t(3, 4, 5)),
        (t(3, 4, 5), t(4, 6), t(3, 5, 6), 2.0, t(3, 4, 1)),
        (t(3, 4, 5), t(4, 6), t(3, 5, 7), 2.0, t(3, 4, 5)),
        (t(3, 4, 5), t(2, 4, 6), t(3, 5, 6), 2.0, t(3, 4, 5)),
    ],
    "aten.gather.default": [(t(5), 0, i(3)), (t(5), 0, i(1, 2, 0))],
    "aten.scatter_add_.default": [(t(4, 5), 0, i(3, 5), t(3, 5)), (t(4, 5), 0, i(0), t(3, 5))],
    "aten.native_layer_norm_backward.default": [
        (t(4, 6), t(4, 6), [6], t(4, 1), t(4, 1), t(6), t(6), [True] * 3),
        (t(4, 6), t(4, 6), [6], t(4, 6), t(4, 6), t(6), t(6), [True] * 3),
    ],
    "aten._adaptive_avg_pool2d_backward.default": [(t(2, 3, 2, 2), t(2, 3, 4, 4)), (t(2, 2, 2), t(3, 4, 4))],
    "aten._adaptive_avg_pool3d_backward.default": [
        (t(2, 3, 2, 2, 2), t(2, 3, 4, 4, 4)),
        (t(1, 3, 2, 2, 2), t(2, 3, 4, 4, 4)),
        (t(2, 2, 2, 2), t(3, 4, 4, 4)),
    ],
    "aten.adaptive_max_pool3d_backward.default": [
        (t(2, 3, 2, 2, 2), t(2, 3, 4, 4, 4), i(2, 3, 2, 2, 2)),
        (t(2, 3, 2, 2, 2), t(2, 3, 4, 4, 4), i(1, 3, 2, 2, 2)),
        (t(1, 3, 2, 2, 2), t(2, 3, 4, 4, 4), i(1, 3, 2, 2, 2)),
    ],
    "aten.reflection_pad2d_backward.default": [
        (t(2, 3, 6, 6), t(2, 3, 4, 4), [1, 1, 1, 1]),
        (t(1, 3, 6, 6), t(2, 3, 4, 4), [1, 1, 1, 1]),
        (t(2, 3, 6, 5), t(2, 3, 4, 4), [1, 1, 1, 1]),
    ],
    "aten.native_dropout_backward.default": [(t(4), t(4, dtype=torch.bool), 2.0), (t(4), t(4), 2.0)],
    "aten.resize_.default": [(t(4, 6), [3, 8]), (t(4, 6), [5, 8])],
    "aten.linalg_pinv.atol_rtol_tensor": [(t(4, 6), t(), t()), (t(4, 6), t(3), t())],
    "aten.binary_cross_entropy_with_logits.default": [
        (t(4, 6), t(4, 6), None, t(6)),
        (t(4, 6), t(4, 6), None, t(4, 6)),
    ],
    "aten._upsample_bilinear2d_aa_backward.default": [
        (t(2, 3, 8, 8), *RESAMPLED, 2.0, 2.0),
        (t(2, 3, 8, 8), *RESAMPLED, 2.0, 3.0),
    ],
}


def fits(op: str, args: tuple[object, ...]) -> bool:
    named = [argument.name for argument in overload(op)._schema.arguments]
    guard = facts(overload(op)).guard
    assert guard is not None
    tensors = [value for value in args if isinstance(value, Described)]
    return guard(tensors, lambda: dict(zip(named, args, strict=False)))


@pytest.mark.parametrize("op", CALLS)
def test_guards_tell_what_fits_by_shapes_and_dtypes(op):
    fitting, *others = CALLS[op]
    assert fits(op, fitting) and not any(fits(op, args) for args in others)
