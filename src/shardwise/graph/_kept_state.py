"""What a program keeps from call to call: buffers that it replaces are written to, which a graph shows; what it has
not registered is noted."""

import pickle
import random
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_ASSIGNED = r"The tensor attributes? (.+) w\w+ assigned during export"


@contextmanager
def noting_state(module: nn.Module, notes: list[str]) -> Iterator[None]:
    """Within, a traced program that keeps tensors, or depends on random numbers that are not torch's, is noted."""
    with (
        _assigned(notes),
        _new_buffers(module),
        _replaced_buffers(module, notes),
        _python_draws(notes),
        _Generators(notes),
    ):
        yield


@contextmanager
def _assigned(notes: list[str]) -> Iterator[None]:
    """Within, torch's warning that the program assigns tensors to attributes becomes a note.

    Recurrent modules hold their weights a second time, in a list; that it changes is expected.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _ASSIGNED)
        yield
    for each in caught:
        found = re.match(_ASSIGNED, str(each.message))
        if found is None:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        elif names := [name for name in found[1].split(", ") if "._flat_weights" not in name]:
            notes.append(f"it assigns tensors to {', '.join(names)}, which are not kept from call to call")


@contextmanager
def _new_buffers(module: nn.Module) -> Iterator[None]:
    """Within, a buffer that a part of the module registers is an attribute: the graph computes it in every call."""
    parts, plain = {id(part) for part in module.modules()}, nn.Module.register_buffer

    def register(self: nn.Module, name: str, tensor: Tensor | None, *args: Any, **kwargs: Any) -> None:
        if id(self) not in parts or self._buffers.get(name) is not None:
            plain(self, name, tensor, *args, **kwargs)
            return
        self.__dict__[name] = tensor

    nn.Module.register_buffer = register
    try:
        yield
    finally:
        nn.Module.register_buffer = plain


@contextmanager
def _replaced_buffers(module: nn.Module, notes: list[str]) -> Iterator[None]:
    """Within, what a part of the module assigns to a buffer is written into it when the program ends: torch sees
    assignments to buffers of the outermost module alone."""
    parts, plain = dict(module.named_modules()), nn.Module.__setattr__
    known = {id(part) for part in parts.values()}
    before: list[tuple[str, nn.Module, str, Tensor]] = []

    def assign(self: nn.Module, name: str, value: Any) -> None:
        buffers = self.__dict__.get("_buffers") or {}
        if isinstance(value, Tensor) and buffers.get(name) is not None and id(self) in known:
            buffers[name] = value
        else:
            plain(self, name, value)

    def begin(*_: Any) -> None:
        before[:] = [
            (f"{path}.{name}".lstrip("."), part, name, buffer)
            for path, part in parts.items()
            for name, buffer in part._buffers.items()
            if buffer is not None
        ]

    def end(*_: Any) -> None:
        for path, part, name, buffer in before:
            made = part._buffers.get(name)
            if made is None or made is buffer:
                continue
            part._buffers[name] = buffer
            if made.shape == buffer.shape and made.dtype == buffer.dtype:
                buffer.copy_(made.detach())
            else:
                kinds = " and then ".join(f"{each.dtype} {list(each.shape)}" for each in (buffer, made))
                notes.append(
                    f"it assigns another kind of tensor to {path} ({kinds}), which is not kept from call to call"
                )

    hooks = [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
    nn.Module.__setattr__ = assign
    try:
        yield
    finally:
        nn.Module.__setattr__ = plain
        for hook in hooks:
            hook.remove()


@contextmanager
def _python_draws(notes: list[str]) -> Iterator[None]:
    before = _states()
    yield
    if _states() != before:
        notes.append("it takes random numbers from Python or NumPy, of which the graph has those of one run")


def _states() -> tuple[Any, ...]:
    return random.getstate(), pickle.dumps(np.random.get_state())


class _Generators(TorchFunctionMode):
    """Within, numbers from a generator of the program's own come from torch's: a graph has streams instead."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self.notes = notes

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None:
            note = (
                "it draws from a generator of its own, which is not advanced: a plan draws from its streams"
            )
            if note not in self.notes:
                self.notes.append(note)
            kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
        return function(*args, **kwargs)
