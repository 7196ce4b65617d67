"""Rows of single calls, for operators that no short list of clauses describes.

Experiments on a call vary the sizes of its dims, those of one size together, and leave everything else as it is. So
what they found holds for every call with the same arguments whose dims agree where the example's do: a `Case` matches
such calls, and says nothing about others.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..calls import UNIMPORTANT, is_tensor
from ..documents import Field
from ..placements import Row

_TENSOR = re.compile(r"(\w+)\[([\d, ]*)\]")


@dataclass(frozen=True)
class Case:
    """The arguments of a call by name, tensors as `float32[4, 6]`, and its rows."""

    arguments: Mapping[str, Any]
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, arguments: Mapping[str, Any], rows: Iterable[Row]) -> "Case":
        return cls({n: plain(v) for n, v in arguments.items() if n not in UNIMPORTANT}, tuple(rows))

    def matches(self, arguments: Mapping[str, Any]) -> bool:
        if arguments.keys() - UNIMPORTANT != self.arguments.keys():
            return False
        sizes: dict[int, int] = {1: 1}
        alike = all(_alike(known, plain(arguments[name]), sizes) for name, known in self.arguments.items())
        return alike and all(given != 1 for known, given in sizes.items() if known != 1)

    def to_document(self) -> dict[str, Any]:
        return {"arguments": dict(self.arguments), "rows": [row.text for row in self.rows]}

    @classmethod
    def read(cls, document: Field) -> "Case":
        fields = document.object(("arguments", "rows"))
        arguments = {name: value.value for name, value in fields["arguments"].members().items()}
        tensors = sum(map(_tensors, arguments.values()))
        rows = []
        for field in fields["rows"].items():
            row = field.parsed(Row.parse)
            if len(row.inputs) != tensors:
                raise field.expected(f"a row of {tensors} inputs, as the call has")
            rows.append(row)
        return cls(arguments, tuple(rows))


def _tensors(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_tensors, value))
    return (
        isinstance(value, str)
        and (match := _TENSOR.fullmatch(value)) is not None
        and hasattr(torch, match[1])
    )


def constants(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Arguments that are the same in all of these calls, apart from tensors; a tensor that none has is None."""
    found = {}
    for name, value in calls[0].items() if calls else ():
        values = [plain(call[name]) for call in calls]
        if name not in UNIMPORTANT and _has_no_tensor(value) and all(v == values[0] for v in values):
            found[name] = values[0]
    return found


def is_covered(arguments: Mapping[str, Any], constant: Mapping[str, Any]) -> bool:
    """True if a call is of the kind that was seen, where `constant` are the arguments that never varied, or those of
    which `{one of: [a, b]}` were tried and it matters which. A number with a fraction may be another of its sign."""
    for name, seen in constant.items():
        given = plain(arguments.get(name))
        if isinstance(seen, dict):
            if given not in seen["one of"]:
                return False
            continue
        numbers = isinstance(seen, float) and type(given) in (int, float)
        if not (_sign(given) == _sign(seen) if numbers else type(given) is type(seen) and given == seen):
            return False
    return True


def always_alike(calls: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Groups of arguments whose tensors have one shape in all of these calls, those without dims aside."""
    groups: list[list[str]] = []
    for name in calls[0] if calls else ():
        if any(_shapes(call[name]) for call in calls):
            fitting = [g for g in groups if all(are_alike(call, [[*g, name]]) for call in calls)]
            if fitting:
                fitting[0].append(name)
            else:
                groups.append([name])
    return [group for group in groups if len(group) > 1]


def are_alike(arguments: Mapping[str, Any], groups: Iterable[Iterable[str]]) -> bool:
    """True if the tensors of every group of arguments have one shape, those without dims aside."""
    return all(len(set().union(*(_shapes(arguments.get(name)) for name in group))) <= 1 for group in groups)


def _shapes(value: Any) -> set[tuple[int, ...]]:
    """The shapes of the tensors in an argument that have dims."""
    tensors = [t for t in (value if isinstance(value, list | tuple) else [value]) if is_tensor(t)]
    return {shape for t in tensors if (shape := tuple(map(int, t.shape)))}


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _has_no_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_has_no_tensor(v) for v in value)
    return not is_tensor(value)


def plain(value: Any) -> Any:
    """A value as it is written in a case: tensors by dtype and shape, what YAML lacks as text."""
    if is_tensor(value):
        return f"{str(value.dtype)[6:]}[{', '.join(str(int(s)) for s in value.shape)}]"
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _alike(known: Any, given: Any, sizes: dict[int, int]) -> bool:
    """True if the values are equal; tensors need the same kind of dtype and number of dims, and add to `sizes`, which
    says what each size of the case is in the call."""
    if isinstance(known, list) and isinstance(given, list):
        return len(known) == len(given) and all(
            _alike(t, g, sizes) for t, g in zip(known, given, strict=True)
        )
    if type(known) is not type(given):
        return False
    first = _TENSOR.fullmatch(known) if isinstance(known, str) else None
    second = _TENSOR.fullmatch(given) if isinstance(given, str) else None
    if first is None or second is None:
        return bool(known == given)
    shapes = [[int(s) for s in m[2].split(",") if s.strip()] for m in (first, second)]
    return (
        _kind(first[1]) == _kind(second[1])
        and len(shapes[0]) == len(shapes[1])
        and all(sizes.setdefault(t, g) == g for t, g in zip(*shapes, strict=True))
    )


def _kind(dtype: str) -> str:
    found: torch.dtype = getattr(torch, dtype)
    if found == torch.bool:
        return "bool"
    return "float" if found.is_floating_point else "complex" if found.is_complex else "integer"
