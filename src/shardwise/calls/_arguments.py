"""The arguments of a call: tensors and their stand-ins, lists of them, as text, on meta, hashed and pickled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError, first_line

Shape = tuple[int, ...]


def is_tensor(value: Any) -> bool:
    """Tensors, and stand-ins that have a shape and a dtype of torch."""
    if isinstance(value, Tensor):
        return True
    return isinstance(getattr(value, "dtype", None), torch.dtype) and hasattr(value, "shape")


def leaves(value: Any) -> Iterator[Any]:
    """A value's parts one by one, those of lists, tuples and dicts in their order; a tensor is one part."""
    if is_tensor(value):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def with_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with each of its parts changed, in order."""
    if not is_tensor(value):
        if isinstance(value, list | tuple):
            changed = [with_leaves(item, change) for item in value]
            if isinstance(value, list):
                return changed
            return value._make(changed) if hasattr(value, "_make") else tuple(changed)
        if isinstance(value, dict):
            return {key: with_leaves(item, change) for key, item in value.items()}
    return change(value)


def with_tensors(value: Any, rest: Iterator[Any]) -> Any:
    """The value with each of its tensors replaced by the next of the rest."""
    return with_leaves(value, lambda leaf: next(rest) if is_tensor(leaf) else leaf)


def flat_outputs(result: Any) -> list[Any]:
    """What a call returns, one by one: tensors in lists and tuples in their order."""
    if type(result) is Tensor:
        return [result]
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in flat_outputs(part)]
    return [result]


def argument_text(value: Any) -> str:
    """An argument as text: tensors by dtype and shape, `float32[4, 6]`."""
    if is_tensor(value):
        return f"{str(value.dtype)[6:]}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(argument_text, value))}]"
    return repr(value)


def on_meta(value: Any) -> Any:
    """Tensors as meta tensors, alone or in lists, and the device to match; other values as they are."""
    return with_leaves(value, _leaf_on_meta)


def _leaf_on_meta(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("meta")
    return torch.empty(tuple(leaf.shape), dtype=leaf.dtype, device="meta") if is_tensor(leaf) else leaf


def copied(value: Any) -> Any:
    """Dense tensors as copies of them, alone or in lists; other values as they are."""
    return with_leaves(value, _copied_leaf)


def _copied_leaf(leaf: Any) -> Any:
    dense = isinstance(leaf, Tensor) and leaf.layout == torch.strided
    return leaf.detach().clone() if dense else leaf


def hashable(value: Any) -> Any:
    """A value that is equal for arguments that are: tensors by shape and dtype, stand-ins by their own equality, and
    True, 1 and 1.0 distinguished."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, list | tuple) and not is_tensor(value):
        return tuple(map(hashable, value))
    if isinstance(value, dict):
        return tuple((key, hashable(item)) for key, item in value.items())
    if isinstance(value, bool | int):
        return type(value), value
    if isinstance(value, float | complex):
        return type(value), repr(value)  # a NaN differs from itself
    return repr(value) if type(value).__hash__ is None else value


@dataclass(frozen=True)
class _Constant:
    """A constant of torch that pickle does not take: a layout or a memory format."""

    name: str


def packed(value: Any) -> Any:
    """The value as pickle takes it."""

    def leaf(part: Any) -> Any:
        is_constant = isinstance(part, torch.layout | torch.memory_format)
        return _Constant(str(part).removeprefix("torch.")) if is_constant else part

    return with_leaves(value, leaf)


def unpacked(value: Any) -> Any:
    """The inverse of `packed`."""
    return with_leaves(value, lambda part: getattr(torch, part.name) if isinstance(part, _Constant) else part)


@contextmanager
def must_run(text: str) -> Iterator[None]:
    """Raise a `UsageError` of one sentence if a call of an operator does not run."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise UsageError(f"{text} does not run: {first_line(error)}") from error
