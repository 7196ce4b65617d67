"""What functions make of rows of which a mask says which count: padded forms of selections.

`x[mask]` has as many rows as the mask has true elements, which no graph knows. In its padded form it has a row for
every element of the mask; those that do not count repeat one that does, so that whatever is defined for the rows that
count is defined for them. Functions of rows give rows again, of which the same count. Where rows are summed, averaged,
compared or drawn together into a loss, those that do not count are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..calls import Facts, facts, registered_as
from ._autograd import NotKept
from ._rows import Rows, rows_of

# A result, and for each of its tensors the rows that count, or None.
Made = tuple[Any, Rows | None]


def padded(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    """What a function makes of tensors of which some rows count."""
    name = name_of(function)
    if name in _NO_TENSORS:
        return function(*args, **kwargs), None
    rule = _RULES.get(name)
    if rule is not None:
        return rule(function, args, kwargs)
    if _is_elementwise(name):
        return _elementwise(function, args, kwargs)
    raise NotKept(
        f"it computes {name} of rows that a mask selects, of which there is no form that keeps all rows; compute it of "
        "the full tensor, with torch.where and sums divided by mask.sum()"
    )


def name_of(function: Any) -> str:
    """The name of a function of torch, of a method, or of an operator of Python: all that are the same have one."""
    name = getattr(function, "__name__", str(function))
    if name in ("__get__", "__set__"):
        return str(function.__self__.__name__)
    if name.startswith("__") and name.endswith("__"):
        plain = name.strip("_")
        for turned in (plain, plain.removeprefix("r"), plain.removeprefix("i")):
            if turned in _OPERATORS:
                return _OPERATORS[turned]
        return name
    return name.removesuffix("_") if not name.startswith("_") else name


# What makes no tensors, and tells nothing of how many rows there are.
_NO_TENSORS = {
    *(
        "dtype",
        "device",
        "layout",
        "requires_grad",
        "is_cuda",
        "is_cpu",
        "is_meta",
        "is_leaf",
        "is_sparse",
        "ndim",
        "dim",
    ),
    *(
        "grad_fn",
        "is_quantized",
        "is_nested",
        "names",
        "ndimension",
        "is_floating_point",
        "is_complex",
        "is_contiguous",
    ),
    *("element_size", "get_device", "is_inference", "is_mkldnn", "is_signed", "itemsize", "_version"),
}
_OPERATORS = {
    **{name: name for name in ("add", "sub", "mul", "pow", "eq", "ne", "lt", "le", "gt", "ge", "neg", "abs")},
    **{
        "truediv": "div",
        "floordiv": "floor_divide",
        "mod": "remainder",
        "and": "bitwise_and",
        "or": "bitwise_or",
    },
    **{"xor": "bitwise_xor", "invert": "bitwise_not", "matmul": "matmul"},
}


@cache
def _facts_of(name: str) -> list[Facts]:
    """What is known of the operators of a function."""
    packet = registered_as(f"torch.{name}")
    return [facts(getattr(packet, each)) for each in packet.overloads()] if packet is not None else []


def _is_elementwise(name: str) -> bool:
    return any(each.elementwise for each in _facts_of(name))


def is_repeatable(name: str) -> bool:
    """Whether a function of tensors makes the same of the same, each time."""
    return name in _SHAPES or (_is_elementwise(name) and not any(each.random for each in _facts_of(name)))


_SHAPES = {
    *("__getitem__", "unsqueeze", "squeeze", "view", "reshape", "flatten", "expand", "expand_as", "permute"),
    *("transpose", "t", "detach", "clone", "contiguous", "to", "float", "long", "int", "bool", "type_as"),
}


def _common(args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Rows:
    """The rows of the arguments, counted from the last dim; all that have some have the same."""
    given = [(each, rows_of(each)) for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    found = [(each, held) for each, held in given if held is not None]
    tensor, first = found[0]
    from_end = first.dim - tensor.dim()
    for other, one in found:
        if one.key != first.key or one.dim - other.dim() != from_end:
            raise NotKept(
                f"it computes {name} of rows that different masks select; select both by the same mask"
            )
    for other, held in given:
        if held is None and other.dim() >= -from_end and other.shape[from_end] != 1:
            raise NotKept(
                f"it computes {name} of rows that a mask selects and others; select both by the same mask"
            )
    return replace(first, dim=from_end)


def _elementwise(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    common = _common(args, kwargs, name_of(function))
    made = function(*args, **kwargs)
    one = made[0] if isinstance(made, tuple | list) else made
    return made, common.along(one.dim() + common.dim)


def _same(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    """Functions of the first tensor that keep the place of the rows."""
    return function(*args, **kwargs), rows_of(args[0])


def _on_other_dims(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    """Functions along dims, which are not that of the rows."""
    held, name = _first(args), name_of(function)
    place = 2 if name == "topk" else 1
    named = "dim" in kwargs or "dims" in kwargs or len(args) > place
    dims = _dims(args, {"dim": kwargs.get("dims")} if "dims" in kwargs else kwargs, args[0].dim(), place)
    if held.dim in (dims if named else {args[0].dim() - 1}):
        _refuse_along(function)
    return function(*args, **kwargs), held


def _refuse_along(function: Any) -> None:
    raise NotKept(
        f"it computes {name_of(function)} along rows that a mask selects, of which there is no form that keeps all rows"
    )


def _first(args: Sequence[Any]) -> Rows:
    held = rows_of(args[0]) if args else None
    if held is None:
        raise NotKept("it combines a tensor with rows that a mask selects; select both by the same mask")
    return held


def _dims(args: Sequence[Any], kwargs: Mapping[str, Any], ndim: int, place: int) -> set[int]:
    """The dims that a call names; all if it names none."""
    given = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else None))
    if given is None or (isinstance(given, tuple | list) and not given):
        return set(range(ndim))
    return {int(dim) % max(ndim, 1) for dim in (given if isinstance(given, tuple | list) else (given,))}


# -- sums, means and the like


def _reduction(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    if any(isinstance(each, Tensor) for each in (*args[1:], *kwargs.values())):
        return _elementwise(function, args, kwargs)  # the larger of two
    tensor, held, name = args[0], _first(args), name_of(function)
    dims = _dims(args, kwargs, tensor.dim(), 2 if name in _OF_AN_ORDER else 1)
    if held.dim not in dims:
        kept = bool(
            kwargs.get("keepdim", args[-1] if len(args) > 2 and isinstance(args[-1], bool) else False)
        )
        before = 0 if kept else sum(dim < held.dim for dim in dims)
        return function(*args, **kwargs), held.along(held.dim - before)
    if name not in _ALONG:
        _refuse_along(function)
    return _ALONG[name](function, held, tensor, args[1:], kwargs), None


def _with(value: Any) -> Callable[..., Any]:
    """A reduction for which rows of this value change nothing."""

    def reduce(
        function: Any, held: Rows, tensor: Tensor, rest: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        return function(held.filled(tensor, value), *rest, **kwargs)

    return reduce


def _as_it_is(
    function: Any, held: Rows, tensor: Tensor, rest: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """A reduction for which it makes no difference that rows are repeated."""
    return function(tensor, *rest, **kwargs)


def _mean(function: Any, held: Rows, tensor: Tensor, rest: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    dtype = kwargs.get("dtype") or tensor.dtype
    total = held.filled(tensor, 0).to(dtype).sum(*rest, **kwargs)
    dims = _dims((tensor, *rest), kwargs, tensor.dim(), 1)
    others = torch.Size(tensor.shape[dim] for dim in dims if dim != held.dim).numel()
    return total / (held.count.tensor * others).to(dtype)


def _variance(
    function: Any, held: Rows, tensor: Tensor, rest: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    if rest or set(kwargs) - {"unbiased", "correction"}:
        _refuse_along(function)
    count = held.count.tensor * (tensor.numel() // held.size)
    mean = held.filled(tensor, 0).sum() / count
    squares = held.filled((tensor - mean) ** 2, 0).sum()
    less = kwargs.get("correction", 1 if kwargs.get("unbiased", True) else 0)
    found = squares / (count - less)
    return found.sqrt() if name_of(function) == "std" else found


_OF_AN_ORDER = {"norm", "linalg_vector_norm"}
_ALONG: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("sum", "nansum", "norm", "linalg_vector_norm", "count_nonzero"), _with(0)),
    **{"prod": _with(1), "logsumexp": _with(-torch.inf), "mean": _mean, "std": _variance, "var": _variance},
    **dict.fromkeys(("max", "min", "amax", "amin", "any", "all"), _as_it_is),
}


# -- losses

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def _loss(place: int) -> Callable[..., Made]:
    """A loss whose reduction is the argument at a place."""

    def loss(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
        given = list(args)
        reduction = kwargs.get("reduction", given[place] if len(given) > place else 1)
        if len(given) > place:
            given[place] = 0
        else:
            kwargs = {**kwargs, "reduction": 0}
        common = _common(given[:2], kwargs, name_of(function))
        made = function(*given, **kwargs)
        return _reduced(made, common.along(common.dim + given[0].dim()), reduction)

    return loss


def _reduced(made: Tensor, held: Rows | None, reduction: int) -> Made:
    if reduction == 0 or held is None:
        return made, held
    if reduction == 2:
        return held.filled(made, 0).sum(), None
    return _mean(torch.mean, held, made, (), {}), None


def _classes(target_at: int, weight_at: int, reduction_at: int, ignored_at: int) -> Callable[..., Made]:
    """A loss of classes, which leaves out the targets that are to be ignored."""

    def loss(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
        given = list(args)
        held, of_target = rows_of(given[0]), rows_of(given[target_at])
        if held is None or of_target is None or held.key != of_target.key or held.dim or of_target.dim:
            raise NotKept(
                "it computes a loss of rows that a mask selects and others; select both by the same mask"
            )
        if given[target_at].is_floating_point():
            return _loss(reduction_at)(function, given, kwargs)
        ignored = kwargs.get("ignore_index", given[ignored_at] if len(given) > ignored_at else -100)
        given[target_at] = of_target.filled(given[target_at], ignored)
        made = function(*given, **kwargs)
        return made, held if made.dim() else None

    return loss


# -- shapes


def _unsqueeze(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    held, made = _first(args), function(*args, **kwargs)
    (dim,) = _dims(args, kwargs, made.dim(), 1)
    return made, held.along(held.dim + (dim <= held.dim))


def _squeeze(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    tensor, held = args[0], _first(args)
    dims = {dim for dim in _dims(args, kwargs, tensor.dim(), 1) if tensor.shape[dim] == 1 and dim != held.dim}
    return function(tensor, *_only(tensor, dims)), held.along(held.dim - sum(dim < held.dim for dim in dims))


def _only(tensor: Tensor, dims: set[int]) -> tuple[tuple[int, ...]]:
    return (tuple(sorted(dims)),)


def _transpose(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    tensor, held = args[0], _first(args)
    names = dict(zip(("dim0", "dim1"), args[1:], strict=False)) | dict(kwargs)
    one, other = (names.get("dim0", 0) % tensor.dim(), names.get("dim1", 1) % tensor.dim())
    return function(*args, **kwargs), held.along({one: other, other: one}.get(held.dim, held.dim))


def _reversed(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    held = _first(args)
    return function(*args, **kwargs), held.along(args[0].dim() - 1 - held.dim)


def _matrix(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    held, last = _first(args), args[0].dim() - 1
    return function(*args, **kwargs), held.along({last: last - 1, last - 1: last}.get(held.dim, held.dim))


def _permute(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    tensor, held = args[0], _first(args)
    order = kwargs.get("dims", args[1] if len(args) == 2 and isinstance(args[1], tuple | list) else args[1:])
    return function(*args, **kwargs), held.along([dim % tensor.dim() for dim in order].index(held.dim))


def _view(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    """Another shape, in which the rows are a dim again."""
    tensor, held = args[0], _first(args)
    made = function(*args, **kwargs)
    before = tensor.shape[: held.dim].numel()
    for dim in range(made.dim()):
        if made.shape[:dim].numel() == before and made.shape[dim] == held.size:
            return made, held.along(dim)
    raise NotKept(
        "it reshapes rows that a mask selects, of which there are as many as it has values; keep them a dim"
    )


def _item(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    """`tensor[index]` where the index leaves the rows as they are."""
    tensor, held, index = args[0], _first(args), args[1]
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in parts if not isinstance(part, Tensor)):
        place = next(i for i, part in enumerate(parts) if part is Ellipsis)
        named = sum(part is not None for part in parts) - 1
        parts[place : place + 1] = [slice(None)] * (tensor.dim() - named)
    dim = place = 0
    for part in parts:
        if dim == held.dim and part is not None:
            if part != slice(None):
                _refuse_along(function)
            break
        place += part is None or isinstance(part, slice)
        dim += part is not None
    return function(*args, **kwargs), held.along(place + held.dim - dim)


def _parts(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    """Pieces along another dim than that of the rows."""
    held = _first(args)
    place = 1 if name_of(function) == "unbind" else 2
    dim = kwargs.get("dim", args[place] if len(args) > place else 0) % args[0].dim()
    if dim == held.dim:
        _refuse_along(function)
    return function(*args, **kwargs), held.along(held.dim - (place == 1 and dim < held.dim))


def _joined(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    """Tensors of the same rows, put together along another dim."""
    tensors = list(args[0])
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    common = _common(tensors, {}, name_of(function))
    made = function(*args, **kwargs)
    ndim, stacked = tensors[0].dim(), name_of(function) == "stack"
    place, dim = common.dim + ndim, dim % (ndim + stacked)
    if not stacked and place == dim:
        _refuse_along(function)
    return made, common.along(place + (stacked and dim <= place))


def _expand(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    tensor, held = args[0], _first(args)
    made = function(*args, **kwargs)
    return made, held.along(held.dim + made.dim() - tensor.dim())


# -- products and lookups


def _product(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    left, right = args[0], args[1]
    of_left, of_right = rows_of(left), rows_of(right)
    contracted = (max(left.dim() - 1, 0), max(right.dim() - 2, 0))
    if of_left is not None and of_left.dim == contracted[0]:
        # Rows are summed over: with zeros for those that do not count.
        left, of_left = of_left.filled(left, 0), None
        of_right = None if of_right is not None and of_right.dim == contracted[1] else of_right
    elif of_right is not None and of_right.dim == contracted[1]:
        right, of_right = of_right.filled(right, 0), None
    made = function(left, right, *args[2:], **kwargs)
    if of_left is not None and of_right is not None:
        raise NotKept(
            "it multiplies rows that masks select with one another, of which there is no padded form"
        )
    if of_left is not None:
        return made, of_left.along(of_left.dim - left.dim() + max(made.dim(), 1) + (right.dim() == 1))
    if of_right is not None:
        return made, of_right.along(made.dim() - 1 if of_right.dim == right.dim() - 1 else of_right.dim)
    return made, None


def _linear(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    held = _first(args)
    if held.dim == args[0].dim() - 1:
        _refuse_along(function)
    return function(*args, **kwargs), held


def _layer_norm(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    held = _first(args)
    if held.dim >= args[0].dim() - len(args[1]):
        _refuse_along(function)
    return function(*args, **kwargs), held


def _embedding(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    return function(*args, **kwargs), _first(args[1:])


def _gather(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    names = dict(zip(("input", "dim", "index"), args, strict=False)) | dict(kwargs)
    held = _common((names["input"], names["index"]), {}, "gather")
    if held.dim + names["index"].dim() == names["dim"] % names["input"].dim():
        _refuse_along(function)
    return function(*args, **kwargs), held.along(held.dim + names["index"].dim())


def _index_select(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    names = dict(zip(("input", "dim", "index"), args, strict=False)) | dict(kwargs)
    of_index = rows_of(names["index"])
    if of_index is None or rows_of(names["input"]) is not None:
        _refuse_along(function)
    assert of_index is not None
    return function(*args, **kwargs), of_index.along(names["dim"] % names["input"].dim())


def _accumulated(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    """Additions at positions: nothing is added for rows that do not count."""
    names = ("input", "dim", "index", "source")
    given = dict(zip(names, args, strict=False)) | {
        "source" if n == "src" else n: v for n, v in kwargs.items()
    }
    of_index = rows_of(given["index"])
    if of_index is None or rows_of(given["input"]) is not None:
        _refuse_along(function)
    assert of_index is not None
    source = given["source"]
    if isinstance(source, Tensor):
        of_source: Rows = rows_of(source) or of_index.along(
            given["dim"] % given["input"].dim() if source.dim() else 0
        )
        source = of_source.filled(source, 0)
    rest = {name: value for name, value in given.items() if name not in names}
    return function(given["input"], given["dim"], given["index"], source, **rest), None


def _placed(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Made:
    """Copies to positions: additions of differences, of which those of rows that do not count are zero."""
    into, dim, index, source = args
    of_index = rows_of(index)
    if of_index is None or rows_of(into) is not None:
        _refuse_along(function)
    assert of_index is not None
    before = into.index_select(dim, index)
    change = (source if isinstance(source, Tensor) else torch.full_like(before, source)) - before
    change = of_index.along(dim % into.dim()).filled(change, 0)
    inplace = function.__name__.endswith("_")
    return (into.index_add_ if inplace else into.index_add)(dim, index, change), None


_Rule = Callable[[Any, Sequence[Any], Mapping[str, Any]], Made]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        (
            "clone",
            "detach",
            "contiguous",
            "to",
            "float",
            "double",
            "half",
            "bfloat16",
            "long",
            "int",
            "bool",
            "cpu",
        ),
        _same,
    ),
    **dict.fromkeys(
        ("type", "requires_grad", "dropout", "alpha_dropout", "one_hot", "data", "real", "imag"), _same
    ),
    **dict.fromkeys(("broadcast_tensors", "type_as", "masked_fill", "where"), _elementwise),
    **dict.fromkeys(("softmax", "log_softmax", "cumsum", "cumprod", "sort", "topk", "flip"), _on_other_dims),
    **dict.fromkeys((*_ALONG, "argmax", "argmin"), _reduction),
    **{"mse_loss": _loss(2), "l1_loss": _loss(2), "smooth_l1_loss": _loss(2), "huber_loss": _loss(2)},
    **{"kl_div": _loss(2), "binary_cross_entropy": _loss(3), "binary_cross_entropy_with_logits": _loss(4)},
    **{"soft_margin_loss": _loss(2)},
    **{
        "cross_entropy_loss": _classes(1, 2, 3, 4),
        "nll_loss_nd": _classes(1, 2, 3, 4),
        "nll_loss": _classes(1, 2, 3, 4),
    },
    **{
        "__getitem__": _item,
        "unsqueeze": _unsqueeze,
        "squeeze": _squeeze,
        "transpose": _transpose,
        "swapaxes": _transpose,
        "t": _transpose,
    },
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"), _view),
    **{
        "T": _reversed,
        "mT": _matrix,
        "permute": _permute,
        "expand": _expand,
        "expand_as": _expand,
        "cat": _joined,
        "concat": _joined,
    },
    **{"stack": _joined, "chunk": _parts, "split": _parts, "unbind": _parts},
    **dict.fromkeys(("matmul", "mm"), _product),
    **{"linear": _linear, "layer_norm": _layer_norm, "rms_norm": _layer_norm, "embedding": _embedding},
    **{"gather": _gather, "index_select": _index_select, "take_along_dim": _gather},
    **dict.fromkeys(("index_add", "scatter_add"), _accumulated),
    **dict.fromkeys(("index_copy", "index_fill"), _placed),
}
