"""Numbers that a program takes from tensors (`.item()`, `int(x)`), as the tensors that they are.

A graph has no numbers that follow from data. What Python does with one is done with a tensor of no dims instead: it is
scaled, compared, formatted, returned. Positions work too: of `x[:, start : start + 4]` the length is known, so it is a
selection by `start + arange(4)`. Only where a number would be a size there is no tensor for it.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ._autograd import NotKept, Undecided
from ._refusal import SIZE


class Number:
    """A number that is the value of a tensor: of `base`, plus a whole number, where that is known."""

    def __init__(self, tensor: Tensor, base: Tensor | None = None, shift: int = 0) -> None:
        self.tensor = tensor
        self.base = tensor if base is None else base
        self.shift = shift

    @property
    def is_whole(self) -> bool:
        return not (self.tensor.is_floating_point() or self.tensor.dtype == torch.bool)

    def _binary(self, other: Any, compute: Callable[[Any, Any], Any], turned: bool = False) -> Any:
        if isinstance(other, Tensor):
            mine = _like(self, other)
            return compute(other, mine) if turned else compute(mine, other)
        if not isinstance(other, Number | int | float):
            return NotImplemented
        theirs = other.tensor if isinstance(other, Number) else other
        return Number(compute(theirs, self.tensor) if turned else compute(self.tensor, theirs))

    def __add__(self, other: Any) -> Any:
        if isinstance(other, int) and self.is_whole:
            return Number(self.tensor + other, self.base, self.shift + other)
        return self._binary(other, operator.add)

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, int):
            return self + -other
        if isinstance(other, Number) and other.base is self.base:
            return self.shift - other.shift
        return self._binary(other, operator.sub)

    __radd__ = __add__

    def __rsub__(self, other: Any) -> Any:
        return self._binary(other, operator.sub, turned=True)

    def __neg__(self) -> "Number":
        return Number(-self.tensor)

    def __abs__(self) -> "Number":
        return Number(self.tensor.abs())

    def __round__(self, digits: int = 0) -> "Number":
        return Number(self.tensor.round(decimals=digits))

    def __compared(self, other: Any, compute: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, Number) and other.base is self.base:
            return compute(self.shift, other.shift)
        made = self._binary(other, compute)
        return made.tensor if isinstance(made, Number) else made

    def __lt__(self, other: Any) -> Any:
        return self.__compared(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self.__compared(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self.__compared(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self.__compared(other, operator.ge)

    def __eq__(self, other: Any) -> Any:
        return self.__compared(other, operator.eq)

    def __ne__(self, other: Any) -> Any:
        return self.__compared(other, operator.ne)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self.tensor != 0)

    def _is_a_size(self) -> Any:
        raise Undecided(SIZE)

    __int__ = __index__ = __float__ = __complex__ = _is_a_size

    def __repr__(self) -> str:
        return "<the value of a tensor>"

    def __format__(self, form: str) -> str:
        return repr(self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Undecided(SIZE)


def _operators() -> None:
    for name in ("mul", "truediv", "floordiv", "mod", "pow"):
        compute = getattr(operator, name)
        setattr(Number, f"__{name}__", lambda a, b, c=compute: a._binary(b, c))
        setattr(Number, f"__r{name}__", lambda a, b, c=compute: a._binary(b, c, turned=True))


_operators()


def as_number(kind: Any, value: Any) -> Any:
    """`kind(value)`: a number of Python where it is known, else a `Number`."""
    tensor = value.tensor if isinstance(value, Number) else value
    if not isinstance(tensor, Tensor) or kind not in (int, float, bool):
        return kind(value)
    if not isinstance(value, Number):
        try:
            return kind(value)
        except Undecided:
            tensor = value.detach().reshape(())
    if kind is bool:
        return tensor != 0
    if kind is float:
        return Number(tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype()))
    if tensor.is_floating_point():
        return Number(tensor.trunc().to(torch.int64))
    return value if isinstance(value, Number) else Number(tensor)


def as_tensors(tree: Any) -> Any:
    """With tensors for what are numbers of that kind."""
    return pytree.tree_map(lambda leaf: leaf.tensor if isinstance(leaf, Number) else leaf, tree)


class Numbers(TorchFunctionMode):
    """Within, a program that takes a number from a tensor gets a `Number`, unless it is known."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (Tensor.item, Tensor.tolist):
            try:
                return function(*args, **kwargs)
            except Undecided:
                read = args[0].detach()
                return _numbers_of(read.reshape(()) if function is Tensor.item else read)
        if function is Tensor.__getitem__ and _has_numbers(args[1]):
            return _selected(args[0], args[1])
        if function is Tensor.__setitem__ and _has_numbers(args[1]):
            return _written(*args)
        if function is torch.narrow or function is Tensor.narrow:
            given = dict(zip(("input", "dim", "start", "length"), args, strict=False)) | kwargs
            if isinstance(given["start"], Number):
                return _taken(given["input"], given["dim"], given["start"], given["length"])
        leaves, form = pytree.tree_flatten((args, kwargs))
        if not any(isinstance(leaf, Number) for leaf in leaves):
            return function(*args, **kwargs)
        if function is torch.batch_norm:
            return _batch_norm(function, args, kwargs)
        like = next((leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()), None)
        plain = [_like(leaf, like) if isinstance(leaf, Number) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(plain, form)
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            raise Undecided(SIZE) from error


def _like(number: Number, tensor: Tensor | None) -> Tensor:
    """The number as a tensor, of a dtype that makes no difference to that of a result, as numbers of Python are."""
    made = number.tensor
    if tensor is not None and tensor.is_floating_point() and made.dtype != tensor.dtype:
        return made.to(tensor.dtype)
    return made


def _numbers_of(tensor: Tensor) -> Any:
    """Lists of numbers, for each dim one."""
    return Number(tensor) if not tensor.dim() else [_numbers_of(each) for each in tensor.unbind(0)]


# -- positions


def _has_numbers(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    bounds = [bound for part in parts if isinstance(part, slice) for bound in (part.start, part.stop)]
    return any(isinstance(each, Number) for each in (*parts, *bounds))


def _steps(tensor: Tensor, index: Any) -> list[tuple[int, Any]]:
    """The parts of an index that are not whole dims, each with its dim; only one-dim positions are known here."""
    parts = list(index) if isinstance(index, tuple) else [index]
    named = sum(part is not None and part is not Ellipsis for part in parts)
    if Ellipsis in [part for part in parts if not isinstance(part, Tensor | Number)]:
        place = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts[place : place + 1] = [slice(None)] * (tensor.dim() - named)
    if any(part is None or isinstance(part, Tensor | list) for part in parts):
        raise NotKept("it combines positions that are values of tensors with others; index in two steps")
    return [(dim, part) for dim, part in enumerate(parts) if part != slice(None)]


def _bounds(tensor: Tensor, dim: int, part: slice) -> tuple[Any, int]:
    """Where a slice begins, and how long it is."""
    start = 0 if part.start is None else part.start
    stop = tensor.shape[dim] if part.stop is None else part.stop
    length = stop - start
    if not isinstance(length, int) or part.step not in (None, 1):
        raise Undecided(SIZE)
    return start, length


def _selected(tensor: Tensor, index: Any) -> Tensor:
    """`tensor[index]`, one dim after the other, from the last."""
    for dim, part in reversed(_steps(tensor, index)):
        if isinstance(part, Number):
            tensor = tensor.index_select(dim, part.tensor.reshape(1)).squeeze(dim)
        elif isinstance(part, slice) and _has_numbers(part):
            tensor = _taken(tensor, dim, *_bounds(tensor, dim, part))
        else:
            tensor = tensor[(slice(None),) * dim + (part,)]
    return tensor


def _taken(tensor: Tensor, dim: int, start: Number, length: int) -> Tensor:
    return tensor.index_select(dim, start.tensor + torch.arange(length))


def _written(tensor: Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value`, where one dim has positions that are values."""
    steps = _steps(tensor, index)
    if len(steps) != 1:
        raise NotKept("it writes to positions that are values of tensors in several dims; use one")
    ((dim, part),) = steps
    if isinstance(part, Number):
        positions, shape = part.tensor.reshape(1), list(tensor.shape)
        shape[dim] = 1
        value = (
            value.unsqueeze(dim) if isinstance(value, Tensor) and value.dim() == tensor.dim() - 1 else value
        )
    else:
        start, length = _bounds(tensor, dim, part)
        positions, shape = start.tensor + torch.arange(length), list(tensor.shape)
        shape[dim] = length
    value = as_tensors(value)
    value = value if isinstance(value, Tensor) else torch.full((), value)
    tensor.index_copy_(dim, positions, value.to(tensor.dtype).expand(shape))


def _batch_norm(function: Any, args: Any, kwargs: Any) -> Tensor:
    """Batch normalisation whose momentum is a value: the statistics of this batch alone, and then their share."""
    names = (
        "input",
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "training",
        "momentum",
        "eps",
        "enabled",
    )
    given = dict(zip(names, args, strict=False)) | kwargs
    share = given["momentum"].tensor
    running = [given[name] for name in ("running_mean", "running_var")]
    own = [each.clone() for each in running]
    made = function(*(given | {"running_mean": own[0], "running_var": own[1], "momentum": 1.0}).values())
    with torch.no_grad():
        for before, now in zip(running, own, strict=True):
            before.lerp_(now, share.to(before.dtype))
    return made
