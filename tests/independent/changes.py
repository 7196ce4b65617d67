"""Calls like one that was recorded, with one to three things changed at random.

What may change follows from the schema and from the tensors: flags, dims, numbers, words, what is left out, sizes, the
number of dims, dtypes. Whether the result is a call at all is found by running it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from .calls import Call, Shape
from .checking import Whole, same, surrounded
from .judging import is_real, largest, widened
from .pieces import draw_grid, draw_integers

LARGEST = 3000
_DIMS = ("dim", "dims", "dim0", "dim1", "dim2", "dimension", "axis", "axis0", "axis1")
_SIZES = (1, 2, 2, 3, 3, 4, 4, 5, 6, 6, 7, 8, 9, 12, 12)
_NUMBERS = (0, 1, -1, 2, -2, 3, 0.5, -0.5, 0.25, 1.5, -3.5, 10.0, 1e-3, math.inf, -math.inf)
_WORDS: dict[str, tuple[str | None, ...]] = {
    "reduce": ("sum", "prod", "mean", "amax", "amin", "max", "min"),
    "approximate": ("none", "tanh"),
    "rounding_mode": (None, "floor", "trunc"),
    "UPLO": ("L", "U"),
    "side": ("left", "right"),
    "driver": ("gels", "gelsy", "gelsd", "gelss"),
    "mode": ("complete", "reduced", "r"),
}

Change = Callable[[Call, Random, Sequence[Call]], Call | None]


def changed(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """A call with one to three changes; None where there is nothing to change, or it would become large. `others` are
    calls of the same operator, which lend arguments."""
    left = random.choice((1, 1, 2, 2, 3))
    for change in random.choices(list(_CHANGES), list(_CHANGES.values()), k=30):
        try:
            result = change(call, random, others)
        except RuntimeError:  # torch makes no such tensor, as with floats of 8 bits
            continue
        if result is not None:
            if sum(t.numel() for t in result.tensors) > LARGEST:
                return None
            call, left = result, left - 1
        if not left:
            return call
    return None


def whole_if_call(call: Call) -> Whole | None:
    """The call with its outputs, if it is one: it runs, twice alike, and gives the shapes that its own kernel for
    tensors without values promises."""
    try:
        if not all(torch.equal(call.tensors[i], call.tensors[i].sort(-1).values) for i in call.ascending):
            return None
        whole = Whole(call, call.tensors)
    except Exception:  # whatever it says, it does not take these arguments
        return None
    outputs = [o for o in whole.outputs if isinstance(o, Tensor)]
    if sum(o.numel() for o in outputs) > 4 * LARGEST:
        return None
    if any(o.layout != torch.strided or o.dtype == torch.complex32 for o in outputs):
        return None  # torch does not compare them
    if not outputs or (whole.undetermined and len(whole.undetermined) == len(outputs)):
        return None
    if _depends_on_memory(whole):
        return None
    promised = None if call.written else _promised(call)
    if promised is False:
        return None
    found = [None if s is None else (s, o.dtype) for s, o in zip(whole.shapes, whole.outputs, strict=True)]
    return whole if promised is None or promised == found else None


def _depends_on_memory(whole: Whole) -> bool:
    """True if the outputs depend on what lies beside the inputs in memory, or on the order of their dims there: kernels
    trust shapes that are not what they expect, and what they read then is not part of the call."""
    call = whole.call
    if "as_strided" in call.name or not whole.has_values:
        return False
    ways = [lambda t, value=value: surrounded(t, value) for value in (3, 1)]
    if not all(t.is_contiguous() for t in call.tensors):
        ways.append(lambda t: t.clone(memory_format=torch.contiguous_format))
    for way in ways:
        try:
            again = call.run([way(t) for t in call.tensors])
        except RuntimeError:
            return True
        for i, (first, second) in enumerate(zip(whole.outputs, again, strict=True)):
            if i not in whole.undetermined and isinstance(first, Tensor) and not _alike(first, second):
                return True
    return False


def _alike(first: Tensor, second: Tensor) -> bool:
    """Equal, up to the order in which kernels add."""
    if same(first, second) or first.shape != second.shape or first.dtype != second.dtype:
        return first.shape == second.shape and first.dtype == second.dtype
    if not is_real(first):
        return False
    first, second = widened(first), widened(second)
    limit = 1e6 * torch.finfo(first.dtype).eps
    return torch.allclose(first, second, limit, limit * max(1.0, largest(first)), equal_nan=True)


def _promised(call: Call) -> list[tuple[Shape, torch.dtype] | None] | bool | None:
    """Shapes and dtypes of the outputs by the operator's own account; None where it gives none, False if it refuses."""
    args, kwargs = call.with_tensors_and_outs([t.to("meta") for t in call.tensors])
    meta = torch.device("meta")
    args = [meta if isinstance(a, torch.device) else a for a in args]
    kwargs = {n: meta if isinstance(a, torch.device) else a for n, a in kwargs.items()}
    try:
        result = call.op(*args, **kwargs)
    except (NotImplementedError, TypeError):  # no such kernel, or one that does not take `out`
        return None
    except Exception as error:  # kernels for meta tensors refuse arguments in many ways
        return None if "meta" in str(error).lower() and "device" in str(error).lower() else False
    flat = result if isinstance(result, tuple | list) else [result]
    leaves = [leaf for part in flat for leaf in (part if isinstance(part, tuple | list) else [part])]
    if any(isinstance(leaf, Tensor) and leaf.device.type != "meta" for leaf in leaves):
        return None  # it makes tensors from nothing, on the CPU
    return [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else None for leaf in leaves]


# --- arguments that are not tensors


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, complex)


def _arguments(call: Call, wanted: Callable[[str, Any], bool]) -> list[str]:
    return [name for name, value in call.arguments.items() if wanted(name, value)]


def _flip(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """A flag the other way round."""
    flags = _arguments(call, lambda _, v: type(v) is bool or (_is_list(v, bool)))
    if not flags:
        return None
    name = random.choice(flags)
    value = call.arguments[name]
    if type(value) is bool:
        return call.changed(**{name: not value})
    place = random.randrange(len(value))
    return call.changed(**{name: [v != (i == place) for i, v in enumerate(value)]})


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and bool(value) and all(type(v) is kind for v in value)


def _dims(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """Other dims, counted from either end; any number of them where several are taken."""
    types = _types(call)
    names = _arguments(call, lambda name, _: name in _DIMS and "Tensor" not in types[name])
    if not names or not call.tensors:
        return None
    name = random.choice(names)
    ndim = max(call.tensors[0].ndim, 1)

    def one(dim: int) -> int:
        return dim - ndim if random.random() < 0.4 else dim

    if "List" in types[name]:
        if "Optional" in types[name] and random.random() < 0.1:
            return call.changed(**{name: None})
        count = random.randint(0, ndim) if random.random() < 0.4 else min(random.choice((1, 1, 2)), ndim)
        return call.changed(**{name: [one(d) for d in random.sample(range(ndim), count)]})
    if "Optional" in types[name] and random.random() < 0.2:
        return call.changed(**{name: None})
    return call.changed(**{name: one(random.randrange(ndim))})


def _types(call: Call) -> dict[str, str]:
    return {a.name: str(a.real_type) for a in call.op._schema.arguments}


def _number(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """A number of another sign or size, zero, one, infinity."""
    types = _types(call)
    names = _arguments(
        call, lambda n, v: n not in _DIMS and (_is_number(v) or _is_list(v, int) or _is_list(v, float))
    )
    if not names:
        return None
    name = random.choice(names)
    value = call.arguments[name]
    if isinstance(value, list):
        place = random.randrange(len(value)) if random.random() < 0.6 else None
        new = _other_number(value[place or 0], "int" in types[name], random)
        new = abs(new) if "size" in name else new
        return call.changed(**{name: [new if place in (None, i) else v for i, v in enumerate(value)]})
    return call.changed(
        **{name: _other_number(value, types[name] in ("int", "SymInt", "Optional[int]"), random)}
    )


def _other_number(value: Any, whole: bool, random: Random) -> Any:
    if whole or (type(value) is int and random.random() < 0.5):
        near = (value + 1, value - 1, 2 * value, -value)
        return random.choice((*near, 0, 1, 2, 3, -1)) if type(value) is int else random.choice((0, 1, 2, -1))
    options = (*_NUMBERS, -value, -value, 2 * value, value + 1)
    return random.choice(options)


def _word(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    names = _arguments(call, lambda n, v: n in _WORDS and (v is None or isinstance(v, str)))
    if not names:
        return None
    name = random.choice(names)
    return call.changed(**{name: random.choice(_WORDS[name])})


def _reduction(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """What is made of the elements of a loss: nothing, their mean, their sum."""
    if type(call.arguments.get("reduction")) is not int:
        return None
    return call.changed(reduction=random.choice((0, 1, 2)))


def _lent(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """An argument as another recorded call has it."""
    other = random.choice(others)
    names = _arguments(call, lambda n, v: not _holds_tensors(v) and not _holds_tensors(other.arguments[n]))
    names = [n for n in names if call.arguments[n] != other.arguments[n]]
    if not names:
        return None
    name = random.choice(names)
    return call.changed(**{name: other.arguments[name]})


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (
        isinstance(value, list) and any(isinstance(v, Tensor) for v in value)
    )


def _left_out(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """What may be None, and is not: left out; or given, as another call or a tensor of this one has it."""
    types = _types(call)
    names = [
        n
        for n in call.arguments
        if types[n].startswith("Optional") and n not in ("device", "layout", "pin_memory")
    ]
    if not names:
        return None
    name = random.choice(names)
    if call.arguments[name] is not None:
        return call.changed(**{name: None})
    given = [o.arguments[name] for o in others if o.arguments[name] is not None]
    if given and random.random() < 0.6:
        return call.changed(**{name: random.choice(given)})
    if types[name] == "Optional[Tensor]" and call.tensors:
        return call.changed(**{name: _new_tensor(call, random)})
    if types[name] == "Optional[List[int]]":
        return _dims(call.changed(**{name: []}), random, others) if name in _DIMS else None
    plain = {
        "Optional[int]": (0, 1, -1, 2),
        "Optional[float]": (0.5, -0.5, 2.0),
        "Optional[bool]": (True, False),
    }
    if types[name] == "Optional[number]":
        return call.changed(**{name: random.choice(_NUMBERS)})
    return call.changed(**{name: random.choice(plain[types[name]])}) if types[name] in plain else None


def _new_tensor(call: Call, random: Random) -> Tensor:
    """A tensor as a call like this may take beside its own: of one's shape, or of the size of a dim."""
    like = random.choice(call.tensors)
    shape = tuple(like.shape)
    if shape and random.random() < 0.7:
        shape = (random.choice(shape),)
    dtype = like.dtype if like.is_floating_point() or like.is_complex() else torch.float64
    return (draw_grid(2.0, shape, random).abs() + 0.25).to(dtype)


def _list_length(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """One tensor more or fewer in every list of tensors, and of numbers that go with them."""
    lists = [v for v in call.arguments.values() if isinstance(v, list) and _holds_tensors(v)]
    if not lists or len({len(v) for v in lists}) > 1:
        return None
    length, more = len(lists[0]), random.random() < 0.4

    def new(value: list[Any]) -> list[Any]:
        return (
            [*value, value[-1].clone() if isinstance(value[-1], Tensor) else value[-1]]
            if more
            else value[:-1]
        )

    if not more and length < 2:
        return None
    return call.changed(
        **{n: new(v) for n, v in call.arguments.items() if isinstance(v, list) and len(v) == length}
    )


# --- tensors


def resized(tensor: Tensor, dim: int, size: int, random: Random) -> Tensor:
    """Another size of one dim: its elements again, or new ones like them."""
    old = tensor.shape[dim]
    if size == old:
        return tensor
    if random.random() < 0.5 and size and old:
        return tensor.index_select(dim, torch.arange(size) % old).contiguous()
    shape = [size if d == dim else s for d, s in enumerate(tensor.shape)]
    return like_elements(tensor, shape, random)


def like_elements(tensor: Tensor, shape: Sequence[int], random: Random) -> Tensor:
    """A tensor of another shape with elements like those of this one."""
    if not tensor.numel():
        return torch.ones(tuple(shape), dtype=tensor.dtype)
    place = draw_integers(0, tensor.numel(), tuple(shape), random)
    drawn = tensor.flatten()[place]
    if tensor.is_floating_point() or tensor.is_complex():
        drawn = drawn * (draw_integers(2, 5, tuple(shape), random) / 4).to(drawn.dtype)
    return drawn


def _size(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """Another size wherever one size stands, in tensors and, one time in two, in arguments that name it."""
    sizes = sorted({s for shape in call.shapes for s in shape})
    if not sizes:
        return None
    old, new = random.choice(sizes), random.choice(_SIZES)
    if random.random() < 0.3:  # equal to another dim
        new = random.choice(sizes)
    if old == new:
        return None

    def change(_: int, tensor: Tensor) -> Tensor:
        for dim in range(tensor.ndim):
            if tensor.shape[dim] == old:
                tensor = resized(tensor, dim, new, random)
        return _within(tensor, old, new)

    result = call.mapped(change)
    return _with_sizes(call, result, old, new) if random.random() < 0.6 else result


def _within(tensor: Tensor, old: int, new: int) -> Tensor:
    """Indices into a dim that became smaller stay in range."""
    is_index = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return (
        tensor.clamp(max=new - 1)
        if is_index and new < old and tensor.numel() and int(tensor.max()) < old
        else tensor
    )


def _with_sizes(before: Call, after: Call, old: int, new: int) -> Call:
    """Integers that are a changed size, or the number of elements of neighbouring dims, changed alike."""
    meaning = {old: new}
    for was, now in zip(before.shapes, after.shapes, strict=True):
        for start in range(len(was)):
            for stop in range(start + 2, len(was) + 1):
                meaning.setdefault(math.prod(was[start:stop]), math.prod(now[start:stop]))

    def change(name: str, value: Any) -> Any:
        if name in _DIMS:
            return value
        if type(value) is int:
            return meaning.get(value, value)
        return [meaning.get(v, v) for v in value] if _is_list(value, int) else value

    return replace(after, arguments={n: change(n, v) for n, v in after.arguments.items()})


def _one_dim(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """One dim of one tensor: of size 1, so that it broadcasts, or no longer so."""
    if not (places := [(i, d) for i, shape in enumerate(call.shapes) for d in range(len(shape))]):
        return None
    index, dim = random.choice(places)
    size = 1 if call.shapes[index][dim] != 1 else random.choice((2, 3, 4, 5, 6, 12))
    return call.mapped(lambda i, t: resized(t, dim, size, random) if i == index else t)


def _fewer_dims(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """Without one dim, all tensors that have most dims, or one tensor alone."""
    most = max((len(shape) for shape in call.shapes), default=0)
    if not most:
        return None
    if random.random() < 0.6:
        dim = random.choice((0, 0, most - 1, random.randrange(most)))
        return call.mapped(lambda _, t: t.select(dim, 0).clone() if t.ndim == most and t.shape[dim] else t)
    index = random.randrange(len(call.shapes))
    return call.mapped(lambda i, t: t.select(0, 0).clone() if i == index and t.ndim and t.shape[0] else t)


def _more_dims(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """With a batch in front: all tensors, those that have most dims, or one of them alone."""
    if not call.shapes:
        return None
    size, most = random.choice((1, 2, 3, 4, 4, 12)), max(map(len, call.shapes))
    which = random.choice(("all", "largest", "one"))
    index = random.randrange(len(call.shapes))

    def change(i: int, tensor: Tensor) -> Tensor:
        chosen = which == "all" or (tensor.ndim == most if which == "largest" else i == index)
        if not chosen or tensor.ndim > 5:
            return tensor
        if random.random() < 0.5:
            return torch.stack([tensor] * size)
        return torch.stack([tensor, *(like_elements(tensor, tensor.shape, random) for _ in range(size - 1))])

    return call.mapped(change)


_TENSOR_DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64, torch.int32, torch.bool)


def _dtype(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """Another dtype: of all tensors of one dtype, of one tensor, or as the argument says."""
    named = _arguments(call, lambda n, v: n == "dtype" or isinstance(v, torch.dtype))
    if named and random.random() < 0.4:
        return call.changed(**{random.choice(named): random.choice(_TENSOR_DTYPES)})
    if not call.tensors:
        return None
    new, index = random.choice(_TENSOR_DTYPES), random.randrange(len(call.tensors))
    old, alone = call.tensors[index].dtype, random.random() < 0.3

    def change(i: int, tensor: Tensor) -> Tensor:
        if i != index if alone else tensor.dtype != old:
            return tensor
        if tensor.is_complex() and not new.is_complex:
            tensor = tensor.real
        if new in (torch.int64, torch.int32) and tensor.is_floating_point():
            tensor = (tensor * 2).round()
        return tensor.to(new)

    return call.mapped(change)


def _strides(call: Call, random: Random, others: Sequence[Call]) -> Call | None:
    """Tensors whose last two dims are swapped in memory."""

    def change(_: int, tensor: Tensor) -> Tensor:
        if tensor.ndim < 2 or random.random() < 0.3:
            return tensor
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)

    return call.mapped(change) if any(t.ndim > 1 for t in call.tensors) else None


_CHANGES: dict[Change, int] = {
    _flip: 3,
    _dims: 4,
    _number: 3,
    _word: 2,
    _reduction: 2,
    _lent: 3,
    _left_out: 2,
    _list_length: 1,
    _size: 5,
    _one_dim: 2,
    _fewer_dims: 2,
    _more_dims: 2,
    _dtype: 2,
    _strides: 1,
}
