"""A program leaves everything that it can reach as it was before: attributes, hooks, those that torch has for all
modules among them, lists, caches, random states.

A model that is run on fake tensors may keep some of them: in a cache that it fills, in a list that it appends to, by
hooks that it puts on its parts when it is first called. Its next call would find them. So what is reachable from a
program is noted before it runs, and put back afterwards, also if it fails.
"""

import functools
import gc
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def unchanged(*roots: Any) -> Iterator[None]:
    """Within, modules and other objects may be changed; afterwards they, and what they hold, are as they were.

    Values of parameters and buffers are not restored if they are written to: give the program others.
    """
    noted = [_noted(each) for each in _reachable((*roots, *_hooks_of_all_modules()))]
    states, dtype = _random_states(), torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        _restore_random(states)
        for restore in noted:
            restore()
        for cache in _caches_of_fake_tensors():
            cache.cache_clear()


_CONTAINERS = (dict, list, set, deque)


def _hooks_of_all_modules() -> list[dict[int, Any]]:
    """What torch calls for every module. Before 2.13 its export leaves a hook there when a program fails."""
    known = vars(torch.nn.modules.module)
    return [held for name, held in known.items() if name.startswith("_global_") and isinstance(held, dict)]


def _reachable(roots: tuple[Any, ...]) -> list[Any]:
    """The containers that the roots lead to, the attributes of an object being one, and the tensors that are not
    registered."""
    found: dict[int, Any] = {}
    registered: set[int] = set()
    left = list(roots)
    while left:
        each = left.pop()
        if id(each) in found or isinstance(each, _PLAIN):
            continue
        found[id(each)] = each
        left += _parts(each)
        if isinstance(each, nn.Module):
            registered.update(map(id, (*each._parameters.values(), *each._buffers.values())))
    return [
        each
        for each in found.values()
        if isinstance(each, _CONTAINERS)
        or (isinstance(each, Tensor) and id(each) not in registered and _has_values(each))
    ]


_PLAIN = (str, bytes, int, float, complex, torch.dtype, torch.device, type, types.ModuleType, type(None))


def _has_values(tensor: Tensor) -> bool:
    return not (tensor.is_meta or tensor.is_inference() or isinstance(tensor, FakeTensor))


def _has_attributes(each: Any) -> bool:
    """Whether an object is one of the program's own, of any class that is not torch's; modules are, always."""
    if isinstance(each, nn.Module):
        return True
    return isinstance(getattr(each, "__dict__", None), dict) and not _is_torch(type(each))


def _is_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "builtins", "threading", "_thread", "logging")


def _parts(each: Any) -> list[Any]:
    """What an object leads to: elements, attributes, and what a function is bound to or closes over."""
    if isinstance(each, dict):
        return list(each.values())
    if isinstance(each, list | tuple | set | frozenset | deque):
        return list(each)
    if isinstance(each, functools.partial):
        return [each.func, each.args, each.keywords]
    if isinstance(each, types.MethodType):
        return [each.__self__]
    if isinstance(each, types.FunctionType):
        return [cell.cell_contents for cell in each.__closure__ or () if not _is_empty(cell)]
    return [vars(each)] if _has_attributes(each) else []


def _is_empty(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def _noted(held: Any) -> Callable[[], None]:
    """A function that puts back what a container or a tensor holds now. It touches only what has changed."""
    if isinstance(held, Tensor):
        return _noted_values(held)
    before = held.copy()

    def restore() -> None:
        if _is_same(held, before):
            return
        held.clear()
        held.update(before) if isinstance(held, dict | set) else held.extend(before)

    return restore


def _noted_values(tensor: Tensor) -> Callable[[], None]:
    version, before = tensor._version, tensor.detach().clone()

    def restore() -> None:
        if tensor._version != version:
            with torch.no_grad():
                tensor.copy_(before)

    return restore


def _is_same(now: Any, before: Any) -> bool:
    """Whether two containers hold the same objects, in the same order."""
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        pairs = zip(now.items(), before.items(), strict=True)
        return all(key is old and value is was for (key, value), (old, was) in pairs)
    if isinstance(now, set):
        return now == before
    return all(one is other for one, other in zip(now, before, strict=True))


def _caches_of_fake_tensors() -> list[Any]:
    """Functions whose results are kept by `functools.cache`, and that have kept tensors without values."""
    return [cache for cache in _caches() if cache.cache_info().currsize and _holds_fake(cache)]


_caches_in: dict[
    str, tuple[int, list[Any]]
] = {}  # by module, with how many names it had when it was searched


def _caches() -> list[Any]:
    """The cached functions and methods in modules that are not torch's. A module is searched again once it has more
    names."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and name.partition(".")[0] not in ("torch", "shardwise"):
            names = vars(module)
            if _caches_in.get(name, (-1, []))[0] != len(names):
                _caches_in[name] = len(names), list(_cached_functions(list(names.values())))
    return list({id(cache): cache for _, caches in _caches_in.values() for cache in caches}.values())


def _cached_functions(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if type(value) is functools._lru_cache_wrapper:
            yield value
        elif type(value) in (staticmethod, classmethod):
            yield from _cached_functions([value.__func__])
        elif isinstance(value, type):
            yield from _cached_functions(
                [each for each in vars(value).values() if not isinstance(each, type)]
            )


def _holds_fake(cache: Any) -> bool:
    entries = gc.get_referents(*gc.get_referents(cache))
    results = [each for each in entries if isinstance(each, list | tuple | dict)]
    return any(isinstance(each, FakeTensor) for each in (*entries, *gc.get_referents(*results)))


def _random_states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _restore_random(states: tuple[Any, ...]) -> None:
    python, numpy, ours = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(ours)
