"""Kernels that do not check their arguments: on shapes that do not fit they divide by zero or write out of bounds, or
compute what the operator is not meant for.

Discovery runs calls on pieces that need not fit together, so a guard checks the call before one of these runs.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# The arguments of a call by name, worked out for the guards that need them.
Given = Callable[[], dict[str, Any]]

# Whether a kernel survives a call with these tensors.
Guard = Callable[[Sequence[Tensor], Given], bool]


def attention_shapes_fit(tensors: Sequence[Tensor], _: Given) -> bool:
    query, key, value = (t.shape for t in tensors[:3])
    return (
        all(t.numel() for t in tensors)
        and query[0] == key[0] == value[0]
        and query[1] % key[1] == 0
        and query[3] == key[3]
        and key[:3] == value[:3]
    )


def channels_fit(tensors: Sequence[Tensor], given: Given) -> bool:
    """Batch norm: one value per channel in every vector, and all other tensors of one shape. Where it does not train,
    the forward leaves the statistics that it does not need empty."""
    arguments = given()
    trains = arguments.get("train", arguments.get("training", True))
    shape = tensors[0].shape
    vectors, others = [t for t in tensors if t.ndim == 1], [t for t in tensors if t.ndim != 1]
    sizes = {len(v) for v in vectors} - (set() if trains else {0})
    per_channel = [arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    return (
        len(shape) > 1
        and sizes <= {shape[1]}
        and all(o.shape == shape for o in others)
        and all(vector is None or len(vector.shape) == 1 for vector in per_channel)
    )


def mask_is_bool(_: Sequence[Tensor], given: Given) -> bool:
    """Dropout backward: the mask says what was kept; the kernel multiplies by any number."""
    return bool(given()["mask"].dtype == torch.bool)


def does_not_grow(_: Sequence[Tensor], given: Given) -> bool:
    """Resizing in place: what is added to a tensor is whatever was in memory."""
    arguments = given()
    size = arguments["the_template"].shape if "the_template" in arguments else arguments["size"]
    return math.prod(size) <= math.prod(arguments["self"].shape)


def tolerances_are_numbers(_: Sequence[Tensor], given: Given) -> bool:
    """Pseudoinverse: tolerances without dims; those with dims add to the dims of the batch."""
    tolerances = [given().get(name) for name in ("atol", "rtol")]
    return not any(getattr(tolerance, "shape", ()) for tolerance in tolerances)


def weights_are_of_classes(_: Sequence[Tensor], given: Given) -> bool:
    """Binary cross entropy: one weight of the positive answers for every class."""
    return len(getattr(given().get("pos_weight"), "shape", ())) <= 1


def batches_fit(tensors: Sequence[Tensor], _: Given) -> bool:
    """Pooling in two dims: batch and channels of the gradient are those of the input."""
    return tensors[0].ndim > 2 and tensors[0].shape[:-2] == tensors[1].shape[:-2]


def statistics_fit(tensors: Sequence[Tensor], _: Given) -> bool:
    """Layer norm backward: a mean for every normalised part of the input, a weight for every element of one."""
    grad, data, mean, rstd, *weights = tensors
    return (
        grad.shape == data.shape
        and mean.shape == rstd.shape
        and mean.ndim == data.ndim
        and all(m in (1, size) for m, size in zip(mean.shape, data.shape, strict=True))
        and all(weight.numel() * mean.numel() == data.numel() for weight in weights)
    )


def scales_fit(_: Sequence[Tensor], given: Given) -> bool:
    """Resampling with antialiasing: an output of the size that the scale says; beyond it lies no input to read."""
    arguments = given()
    before = arguments["input_size"] if "input_size" in arguments else arguments["self"].shape
    scales = (arguments.get("scales_h"), arguments.get("scales_w"))
    return all(
        scale is None or (math.isfinite(scale) and int(size * scale) == made)
        for size, made, scale in zip(before[-2:], arguments["output_size"], scales, strict=True)
    )


def windows_fit(_: Sequence[Tensor], given: Given) -> bool:
    """Convolution backward: a gradient of the shape that the forward has."""
    arguments = given()
    grad, image, weight = (arguments[name].to("meta") for name in ("grad_output", "input", "weight"))
    how = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    try:
        output = torch.ops.aten.convolution.default(image, weight, None, *(arguments[name] for name in how))
    except RuntimeError:
        return False
    return grad.numel() > 0 and output.shape == grad.shape
