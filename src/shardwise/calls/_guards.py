"""Kernels that do not check their arguments: on shapes that do not fit they divide by zero or write out of bounds, or
compute what the operator is not meant for.

Discovery runs calls on pieces that need not fit together, so a guard checks the call before one of these runs; and no
rule speaks of a call that does not pass. Guards read shapes and dtypes alone: planning's tensors have nothing else.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ._arguments import flat_outputs, on_meta
from ._names import overload

# The arguments of a call by name, worked out for the guards that need them.
Given = Callable[[], dict[str, Any]]

# Whether an operator is meant for a call with these tensors, and its kernel survives it.
Guard = Callable[[Sequence[Any], Given], bool]


def attention_shapes_fit(tensors: Sequence[Any], _: Given) -> bool:
    query, key, value = (t.shape for t in tensors[:3])
    return (
        all(math.prod(t.shape) for t in tensors)
        and query[0] == key[0] == value[0]
        and query[1] % key[1] == 0
        and query[3] == key[3]
        and key[:3] == value[:3]
    )


def channels_fit(tensors: Sequence[Any], given: Given) -> bool:
    """Batch norm: one value per channel in every vector, and all other tensors of one shape. Where it does not train,
    the forward leaves the statistics that it does not need empty."""
    arguments = given()
    trains = all(arguments.get(name, True) for name in ("train", "training", "update"))
    shape, *rest = (tuple(t.shape) for t in tensors if t is not arguments.get("reserve"))
    sizes = {s[0] for s in rest if len(s) == 1} - (set() if trains else {0})
    per_channel = [arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    return (
        len(shape) > 1
        and sizes <= {shape[1]}
        and all(other == shape for other in rest if len(other) != 1)
        and all(vector is None or len(vector.shape) == 1 for vector in per_channel)
    )


def mask_is_bool(_: Sequence[Any], given: Given) -> bool:
    """Dropout backward: the mask says what was kept; the kernel multiplies by any number."""
    return bool(given()["mask"].dtype == torch.bool)


def does_not_grow(_: Sequence[Any], given: Given) -> bool:
    """Resizing in place: what is added to a tensor is whatever was in memory."""
    arguments = given()
    size = arguments["the_template"].shape if "the_template" in arguments else arguments["size"]
    return math.prod(size) <= math.prod(arguments["self"].shape)


def tolerances_are_numbers(_: Sequence[Any], given: Given) -> bool:
    """Pseudoinverse: tolerances without dims; those with dims add to the dims of the batch."""
    tolerances = [given().get(name) for name in ("atol", "rtol")]
    return not any(getattr(tolerance, "shape", ()) for tolerance in tolerances)


def weights_are_of_classes(_: Sequence[Any], given: Given) -> bool:
    """Binary cross entropy: one weight of the positive answers for every class."""
    return len(getattr(given().get("pos_weight"), "shape", ())) <= 1


def batches_fit(windows: int) -> Guard:
    """Backward of pooling over so many dims: batch and channels of the gradient are those of the input, and there is an
    index for every element of it, where the kernel is given some."""

    def fits(tensors: Sequence[Any], _: Given) -> bool:
        grad, data, *indices = (tuple(tensor.shape) for tensor in tensors)
        return (
            len(grad) > windows
            and grad[:-windows] == data[:-windows]
            and all(shape == grad for shape in indices)
        )

    return fits


def statistics_fit(tensors: Sequence[Any], _: Given) -> bool:
    """Layer norm backward: a mean for every normalised part of the input, a weight for every element of one."""
    grad, data, mean, rstd, *weights = tensors
    return (
        grad.shape == data.shape
        and mean.shape == rstd.shape
        and len(mean.shape) == len(data.shape)
        and all(m in (1, size) for m, size in zip(mean.shape, data.shape, strict=True))
        and all(math.prod((*weight.shape, *mean.shape)) == math.prod(data.shape) for weight in weights)
    )


def groups_fit(tensors: Sequence[Any], given: Given) -> bool:
    """Group norm backward: sizes and groups that are those of the images; kernels trust them."""
    arguments = given()
    images, channels, groups = tuple(arguments["input"].shape), arguments["C"], arguments["group"]
    return (
        images[:2] == (arguments["N"], channels)
        and math.prod(images[2:]) == arguments["HxW"]
        and channels % groups == 0
        and tuple(arguments["grad_out"].shape) == images
        and tuple(arguments["mean"].shape) == tuple(arguments["rstd"].shape) == (arguments["N"], groups)
    )


def scales_fit(_: Sequence[Any], given: Given) -> bool:
    """Resampling with antialiasing: an output of the size that the scale says; beyond it lies no input to read."""
    arguments = given()
    before = arguments["input_size"] if "input_size" in arguments else arguments["self"].shape
    scales = (arguments.get("scales_h"), arguments.get("scales_w"))
    return all(
        scale is None or (math.isfinite(scale) and int(size * scale) == made)
        for size, made, scale in zip(before[-2:], arguments["output_size"], scales, strict=True)
    )


def gradient_of(forward: str) -> Guard:
    """Backward of what runs windows over an input: a gradient of the shape that the forward has, and as many indices,
    where the kernel is given some."""
    op = overload(forward)
    names = [argument.name for argument in op._schema.arguments]

    def fits(_: Sequence[Any], given: Given) -> bool:
        arguments = given()
        shape = tuple(arguments["grad_output"].shape)
        if not math.prod(shape) or ("indices" in arguments and tuple(arguments["indices"].shape) != shape):
            return False
        try:
            result = flat_outputs(op(*(on_meta(arguments.get(name)) for name in names)))
        except RuntimeError:
            return False
        return tuple(result[0].shape) == shape

    return fits


def part_fits(_: Sequence[Any], given: Given) -> bool:
    """Backward of `select` and `slice`: a gradient of the shape of the part; kernels read one that is smaller as if it
    were not."""
    arguments = given()
    sizes, grad = list(arguments["input_sizes"]), tuple(arguments["grad_output"].shape)
    if not sizes:
        return False
    dim = arguments["dim"] % len(sizes)
    if "index" in arguments:
        return grad == (*sizes[:dim], *sizes[dim + 1 :])
    start, end, step = (arguments[name] for name in ("start", "end", "step"))
    sizes[dim] = len(range(*slice(start, end, step).indices(sizes[dim])))
    return grad == tuple(sizes)


def distances_fit(tensors: Sequence[Any], _: Given) -> bool:
    """Backward of distances: one for every pair of vectors, and a gradient for every one."""
    grad, first, second, distances = (tuple(tensor.shape) for tensor in tensors)
    if min(map(len, (first, second))) < 2 or first[-1] != second[-1]:
        return False
    try:
        batch = torch.broadcast_shapes(first[:-2], second[:-2])
    except RuntimeError:
        return False
    return grad == distances == (*batch, first[-2], second[-2])


def places_fit(_: Sequence[Any], given: Given) -> bool:
    """Gathering and scattering: places with as many dims as the tensor that they are in; without places, kernels take
    any number."""
    arguments = given()
    whole, places = (len(arguments[name].shape) for name in ("self", "index"))
    return max(whole, 1) == max(places, 1)


def bags_fit(_: Sequence[Any], given: Given) -> bool:
    """Embedding bag backward: a gradient for every bag, and a bag for every index, unless those are left to the kernel
    to count."""
    arguments = given()
    grad, indices = (tuple(arguments[name].shape) for name in ("grad", "indices"))
    sizes, weights = arguments.get("bag_size"), arguments.get("per_sample_weights")
    return (
        len(grad) == 2
        and tuple(arguments["offset2bag"].shape) in ((0,), indices)
        and (sizes is None or tuple(sizes.shape) == grad[:1])
        and (weights is None or tuple(weights.shape) == indices)
    )
