"""Values that follow from a program alone: those of tensors that it makes from numbers (`torch.ones`, `arange`).

A mask of ones that a model makes where it is given none, and then tests, has one value in every call. Torch forgets
most such values while it traces, so they are computed beside the trace: whatever is computed from known tensors alone
is computed with their values too, in place where the program does so, views sharing memory with their bases as theirs
do. Where the program then reads a value it gets it, and where the size of a result depends on values (`nonzero`, an
index that is a mask) the result, or the positions that the mask selects, become constants of the program. Computing
them takes time and memory, so this is for programs that cannot be captured otherwise.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

# Bytes of the largest tensor whose values are followed.
_MOST = 1 << 28

_FILLED: dict[Any, float] = {
    **dict.fromkeys((torch.ones, torch.ones_like, Tensor.new_ones), 1),
    **dict.fromkeys((torch.zeros, torch.zeros_like, Tensor.new_zeros), 0),
}
_GIVEN = (torch.full, torch.full_like, Tensor.new_full)
_FROM_NUMBERS = (torch.arange, torch.tensor, torch.as_tensor, torch.eye, torch.linspace)
# What turns a tensor into something that is none.
READS = {
    *(Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    *(Tensor.__contains__, Tensor.equal, torch.equal, Tensor.allclose, torch.allclose, torch.is_nonzero),
}
# What makes tensors whose sizes depend on values.
_SIZED = {
    *(torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere, torch.unique, Tensor.unique),
    *(torch.unique_consecutive, Tensor.unique_consecutive, torch.bincount, Tensor.bincount),
    *(torch.repeat_interleave, Tensor.repeat_interleave, torch.masked_select, Tensor.masked_select),
}
_REPEATS = (torch.repeat_interleave, Tensor.repeat_interleave)
# Those of which the last tensor alone decides the sizes.
_SELECTS = {*_REPEATS, torch.masked_select, Tensor.masked_select}


class KnownValues(TorchFunctionMode):
    """Within, a program that is traced can read what follows from itself alone."""

    def __init__(self) -> None:
        super().__init__()
        self._values = WeakIdKeyDictionary()

    def has(self, tensor: Tensor) -> bool:
        return tensor in self._values

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (Tensor.__getitem__, Tensor.__setitem__):
            args = (args[0], self._positions(args[1]), *args[2:])
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = bool(tensors) and all(tensor in self._values for tensor in tensors)
        sized = function in _SIZED or (function is torch.where and len(args) == 1)
        if known and (function in READS or sized):
            value = self._computed(function, args, kwargs)
            return pytree.tree_map_only(Tensor, self._constant, value) if sized else value
        if function in _SELECTS and not known:
            function, args, kwargs = self._by_positions(function, args, kwargs)
        made = function(*args, **kwargs)
        if known:
            small = all(map(_is_small, pytree.tree_leaves(made)))
            self._note(made, self._computed(function, args, kwargs) if small else None)
        elif _changes(function, kwargs):
            self._forget(tensors[0] if "out" not in kwargs else kwargs["out"])
        elif isinstance(made, Tensor) and not kwargs.get("requires_grad") and _is_small(made):
            self._note(made, _value_of(function, made, args, kwargs, bool(tensors)))
        return made

    def _computed(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What a function makes of known values; None where it draws numbers."""
        args, kwargs = pytree.tree_map_only(Tensor, self._values.__getitem__, (args, kwargs))
        with _values_alone():
            before = torch.get_rng_state()
            made = function(*args, **kwargs)
            drawn = not torch.equal(before, torch.get_rng_state())
            torch.set_rng_state(before)
        return None if drawn else made

    def _note(self, made: Any, values: Any) -> None:
        """The values of what a call made. Where there are none, it may have changed what was known."""
        leaves = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]
        known = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]
        if len(leaves) != len(known):
            for leaf in leaves:
                self._forget(leaf)
            return
        for leaf, value in zip(leaves, known, strict=True):
            self._values[leaf] = value

    def _forget(self, tensor: Tensor) -> None:
        """The values of a tensor, and of all that share its memory, are known no more."""
        if tensor not in self._values:
            return
        place = self._values[tensor].untyped_storage().data_ptr()
        shared = [key for key, value in self._values.items() if value.untyped_storage().data_ptr() == place]
        for key in shared:
            del self._values[key]

    def _constant(self, value: Tensor) -> Tensor:
        with _values_alone():
            numbers = value.tolist()
        made = torch.tensor(numbers, dtype=value.dtype).reshape(value.shape)
        self._values[made] = value
        return made

    def _by_positions(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """A selection from a tensor by values that are known as one by positions."""
        given = dict(zip(("input", "repeats" if function in _REPEATS else "mask", "dim"), args, strict=False))
        given |= {"input" if name == "self" else name: value for name, value in kwargs.items()}
        source, by = given["input"], given.get("repeats", given.get("mask"))
        if not isinstance(by, Tensor) or by not in self._values:
            return function, args, kwargs
        if function not in _REPEATS:
            source, by = torch.broadcast_tensors(source, by)
            with _values_alone():
                chosen = self._values[given["mask"]].expand(source.shape).reshape(-1).nonzero().reshape(-1)
            return torch.index_select, (source.reshape(-1), 0, self._constant(chosen)), {}
        dim = given.get("dim")
        source, dim = (source.reshape(-1), 0) if dim is None else (source, dim)
        with _values_alone():
            repeats = self._values[by].expand(source.shape[dim])
            chosen = torch.arange(len(repeats)).repeat_interleave(repeats)
        return torch.index_select, (source, dim, self._constant(chosen)), {}

    def _positions(self, index: Any) -> Any:
        """An index in which masks that are known are the positions that they select."""
        parts = index if isinstance(index, tuple) else (index,)
        found: list[Any] = []
        for part in parts:
            if isinstance(part, Tensor) and part.dtype == torch.bool and part.ndim and part in self._values:
                found += map(self._constant, self._computed(Tensor.nonzero, (part,), {"as_tuple": True}))
            else:
                found.append(part)
        return index if all(a is b for a, b in zip(found, parts, strict=False)) else tuple(found)


def _is_small(made: Any) -> bool:
    return not isinstance(made, Tensor) or made.numel() * made.element_size() <= _MOST


@contextmanager
def _values_alone() -> Iterator[None]:
    """Within, calls compute values, and nobody traces them."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def _changes(function: Callable[..., Any], kwargs: Any) -> bool:
    """Whether a function writes to its first argument, or to `out`."""
    name = getattr(function, "__name__", "")
    inplace = name.endswith("_") and not name.endswith("__")
    assigns = name in ("__setitem__", "__set__") or name.startswith("__i")
    return inplace or assigns or kwargs.get("out") is not None


def _value_of(function: Any, made: Tensor, args: Any, kwargs: Any, of_tensors: bool) -> Tensor | None:
    """The values of what was made from numbers alone."""
    fill = _FILLED.get(function)
    if function in _GIVEN:
        fill = kwargs.get("fill_value", args[-1] if args else None)
    with _values_alone():
        if isinstance(fill, bool | int | float):
            return torch.full(made.shape, fill, dtype=made.dtype)
        numbers = pytree.tree_leaves((args, {k: v for k, v in kwargs.items() if k != "device"}))
        plain = all(isinstance(each, bool | int | float | torch.dtype | NoneType) for each in numbers)
        if function in _FROM_NUMBERS and not of_tensors and plain:
            return function(*args, **kwargs | {"device": "cpu"})
    return None
