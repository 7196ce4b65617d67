"""One call of an overload, as plain data: its arguments by name, in the order of the schema, defaults filled in."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

with contextlib.suppress(ModuleNotFoundError):  # from torch 2.13: it registers an operator of its own
    import torch.nn.modules.linear_cross_entropy

Shape = tuple[int, ...]

# What these leave in memory is not defined, so only shapes and dtypes of their results can be compared.
UNINITIALISED = (
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
    "resize",
)

_ASCENDING = ("boundaries", "sorted_sequence")


@dataclass(frozen=True, eq=False)
class Call:
    """`arguments` lack those that say where to write (`out`); `source` is the OpInfo that the call came from."""

    op: Any
    arguments: dict[str, Any]
    source: str = ""

    @classmethod
    def of(cls, op: Any, args: Sequence[Any], kwargs: dict[str, Any], source: str = "") -> "Call":
        given = dict(zip((a.name for a in op._schema.arguments if not a.kwarg_only), args, strict=False))
        given |= kwargs
        arguments = {
            a.name: _plain(given.get(a.name, a.default_value)) for a in op._schema.arguments if not a.is_out
        }
        return cls(op, arguments, source)

    def __reduce__(self) -> Any:
        return _unpacked, (self.name, {n: _packed(v) for n, v in self.arguments.items()}, self.source)

    @property
    def name(self) -> str:
        return str(self.op)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors it is given, those inside lists one by one."""
        return list(_tensors(self.arguments.values()))

    @cached_property
    def shapes(self) -> list[Shape]:
        return [tuple(t.shape) for t in self.tensors]

    @cached_property
    def is_random(self) -> bool:
        if (
            "dropout_p" in self.arguments or "dropout" in self.arguments
        ):  # attention, which draws nothing without
            return self.arguments.get("dropout_p", self.arguments.get("dropout")) != 0
        return torch.Tag.nondeterministic_seeded in self.op.tags

    @cached_property
    def has_special_numbers(self) -> bool:
        """True if an argument is infinite or no number: times zero, or beside another, that is none in any order."""
        numbers = [
            v for value in self.arguments.values() for v in (value if isinstance(value, list) else [value])
        ]
        return any(isinstance(v, float) and not math.isfinite(v) for v in numbers)

    @cached_property
    def is_uninitialised(self) -> bool:
        return self.op._schema.name.removeprefix("aten::").rstrip("_") in UNINITIALISED

    @cached_property
    def split_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Its arguments as positional ones, and those that must be named."""
        keywords = {a.name for a in self.op._schema.arguments if a.kwarg_only}
        args = [value for name, value in self.arguments.items() if name not in keywords]
        return args, {name: value for name, value in self.arguments.items() if name in keywords}

    @cached_property
    def outs(self) -> dict[str, torch.dtype]:
        """Where an `out` variant writes: the names, with the dtypes of what the original returns."""
        names = [a.name for a in self.op._schema.arguments if a.is_out]
        if not names:
            return {}
        original = original_of(self.op)
        assert original is not None
        results = Call.of(original, (), self.arguments).run([t.clone() for t in self.tensors])
        return {name: result.dtype for name, result in zip(names, results, strict=True)}

    @cached_property
    def ascending(self) -> list[int]:
        """Tensors that the operator takes to be sorted."""
        if self.arguments.get("sorter") is not None:
            return []
        return [i for i, t in enumerate(self.tensors) for name in _ASCENDING if t is self.arguments.get(name)]

    @cached_property
    def written(self) -> list[int]:
        """For an operator that returns nothing, the tensors that it writes: they count as its results."""
        if self.op._schema.returns:
            return []
        found: list[int] = []
        place = 0
        for argument in self.op._schema.arguments:
            count = len(list(_tensors([self.arguments.get(argument.name)])))
            found += range(place, place + count) if argument.is_write else ()
            place += count
        return found

    @cached_property
    def _slots(self) -> list[tuple[bool, Any, int | None]]:
        """Where its tensors stand: among the named arguments or not, under which key, where in the list there."""
        args, kwargs = self.split_arguments
        slots: list[tuple[bool, Any, int | None]] = []
        for named, items in ((False, enumerate(args)), (True, kwargs.items())):
            for key, value in items:
                if isinstance(value, Tensor):
                    slots.append((named, key, None))
                elif isinstance(value, list):
                    slots += [(named, key, i) for i, v in enumerate(value) if isinstance(v, Tensor)]
        return slots

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments, with other tensors in the places of its own."""
        positional, named = self.split_arguments
        args = [list(v) if isinstance(v, list) else v for v in positional]
        kwargs = {n: list(v) if isinstance(v, list) else v for n, v in named.items()}
        for (is_named, key, inside), tensor in zip(self._slots, tensors, strict=True):
            container: Any = kwargs if is_named else args
            if inside is None:
                container[key] = tensor
            else:
                container[key][inside] = tensor
        return args, kwargs

    def run(self, tensors: Sequence[Tensor]) -> list[Any]:
        """What the call returns for these tensors, lists one by one."""
        args, kwargs = self.with_tensors_and_outs(tensors)
        result = self.op(*args, **kwargs)
        return [tensors[i] for i in self.written] if self.written else flat(result)

    def with_tensors_and_outs(self, tensors: Sequence[Tensor]) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = self.with_tensors(tensors)
        device = tensors[0].device if tensors else None
        outs = {name: torch.empty(0, dtype=dtype, device=device) for name, dtype in self.outs.items()}
        return args, kwargs | outs

    def changed(self, /, **arguments: Any) -> "Call":
        return replace(self, arguments={**self.arguments, **arguments})

    def mapped(self, change: Callable[[int, Tensor], Tensor]) -> "Call":
        """The call with every tensor changed; `change` is told which one it is."""
        tensors = [change(i, t) for i, t in enumerate(self.tensors)]
        args, kwargs = self.with_tensors(tensors)
        return Call.of(self.op, args, kwargs, self.source)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{n}={text(v)}' for n, v in self.arguments.items())})"


@dataclass(frozen=True)
class _Packed:
    """A tensor as bytes, which is pickled in a tenth of the time that torch takes."""

    dtype: torch.dtype
    shape: Shape
    strides: tuple[int, ...]
    data: bytes


def _packed(value: Any) -> Any:
    if isinstance(value, Tensor):
        data = value.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return _Packed(value.dtype, tuple(value.shape), value.stride(), data)
    return [_packed(v) for v in value] if isinstance(value, list) else value


def _opened(value: Any) -> Any:
    if isinstance(value, _Packed):
        flat = torch.frombuffer(bytearray(value.data), dtype=value.dtype) if value.data else torch.empty(0)
        result = torch.empty_strided(value.shape, value.strides, dtype=value.dtype)
        return result.copy_(flat.reshape(value.shape))
    return [_opened(v) for v in value] if isinstance(value, list) else value


def _unpacked(name: str, arguments: dict[str, Any], source: str) -> Call:
    return Call(operator(name), {n: _opened(v) for n, v in arguments.items()}, source)


def operator(name: str) -> Any:
    """The overload `aten.mm.default`."""
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def text(value: Any) -> str:
    if isinstance(value, Tensor):
        strides = "" if value.is_contiguous() else f" strides {list(value.stride())}"
        return f"{str(value.dtype)[6:]}{list(value.shape)}{strides}"
    if isinstance(value, list):
        return f"[{', '.join(map(text, value))}]"
    return repr(value)


def flat(result: Any) -> list[Any]:
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in flat(part)]
    return [result]


def original_of(op: Any) -> Any | None:
    """The functional overload of which this one is an in-place or out variant."""
    wanted = _signature(op)
    packet_name = op._schema.name.removeprefix("aten::").removesuffix("_")
    packet = getattr(torch.ops.aten, packet_name, None)
    for name in packet.overloads() if packet is not None else ():
        candidate = getattr(packet, name)
        if not candidate._schema.is_mutable and _signature(candidate) == wanted:
            return candidate
    return None


def variants_of(op: Any) -> Iterator[Any]:
    """The in-place and out variants of a functional overload of ATen; those that write lists aside are left out."""
    if op._schema.is_mutable or op.namespace != "aten":
        return
    name = op._schema.name.removeprefix("aten::")
    for packet_name in (name, f"{name}_"):
        packet = getattr(torch.ops.aten, packet_name, None)
        for overload in packet.overloads() if packet is not None else ():
            variant = getattr(packet, overload)
            schema = variant._schema
            in_place = schema.is_mutable and schema.arguments[0].is_write
            if schema.is_mutable and (schema.returns or in_place) and _signature(variant) == _signature(op):
                yield variant


def _signature(op: Any) -> list[tuple[str, str]]:
    """What an overload takes; how and where its result is kept aside."""
    kept = ("dtype", "layout", "device", "pin_memory", "memory_format")
    return [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out and a.name not in kept]


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list):
            yield from _tensors(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value
