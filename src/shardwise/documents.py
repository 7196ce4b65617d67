"""Reading documents: every field is checked where it is read, and a wrong one is named with its place.

A `Field` is a value of a document and where it stands. Its methods give the value as what it should be, or refuse it
with one sentence: `choices['mm'][0][1]: expected a whole number from 0 to 4, found 'S(0)'`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import UsageError

Made = TypeVar("Made")

_LONGEST = 60  # characters of a value that are shown


@dataclass(frozen=True)
class Field:
    """A value of a document, and its place: `nodes[3].outputs[0]`; that of the whole document is empty.

    >>> node = Field({"name": "mm", "shape": [4, "6"]}).object(("name", "shape"))
    >>> node["name"].text()
    'mm'
    >>> [size.integer(least=0) for size in node["shape"].items()]
    Traceback (most recent call last):
    shardwise.errors.UsageError: shape[1]: expected a whole number, at least 0, found '6'
    """

    value: Any
    place: str = ""

    def object(self, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, "Field"]:
        """The fields of an object that has the required ones, maybe the optional ones, and no others."""
        found = self.members()
        for name in required:
            if name not in found:
                raise self.wrong(f"expected the field {name!r}, found {_listed(found)}")
        for name in found:
            if name not in required and name not in optional:
                raise self.wrong(f"expected the fields {_listed([*required, *optional])}, found {name!r}")
        return found

    def members(self) -> dict[str, "Field"]:
        """The fields of an object of any names."""
        if not isinstance(self.value, dict):
            raise self.expected("an object")
        for name in self.value:
            if not isinstance(name, str):
                raise self.wrong(f"expected names that are text, found {_shown(name)}")
        return {name: Field(value, self._inside(name)) for name, value in self.value.items()}

    def items(self, length: int | None = None) -> list["Field"]:
        """The items of a list, of this length if one is given."""
        if not isinstance(self.value, list | tuple) or length not in (None, len(self.value)):
            raise self.expected("a list" if length is None else f"a list of {length}")
        return [Field(value, f"{self.place}[{i}]") for i, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.expected("text")
        return self.value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.expected("true or false")
        return self.value

    def integer(self, least: int | None = None, most: int | None = None) -> int:
        value = self.value
        fits = isinstance(value, int) and not isinstance(value, bool)
        if not fits or (least is not None and value < least) or (most is not None and value > most):
            limits = f" from {least} to {most}" if most is not None else f", at least {least}"
            raise self.expected("a whole number" + ("" if least is None else limits))
        return value

    def number(self, least: float = 0, most: float | None = None) -> float:
        """A finite number, at least 0 unless told."""
        value = self.value
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not fits or value < least or (most is not None and value > most):
            limits = f", at least {least:g}" if most is None else f" from {least:g} to {most:g}"
            raise self.expected(f"a number{limits}")
        return value

    def one_of(self, options: Iterable[str]) -> str:
        if not isinstance(self.value, str) or self.value not in (known := list(options)):
            raise self.expected(f"one of {', '.join(map(str, options))}")
        return known[known.index(self.value)]

    def optional(self, read: Callable[["Field"], Made]) -> Made | None:
        """The result of `read`, or None where the value is null."""
        return None if self.value is None else read(self)

    def parsed(self, parse: Callable[[str], Made]) -> Made:
        """The result of `parse` on a text; its errors are prefixed with the place."""
        text = self.text()
        with self.checked():
            return parse(text)

    def checked(self) -> "_Checked":
        """A context in which errors of the caller are prefixed with the place."""
        return _Checked(self)

    def expected(self, right: str) -> UsageError:
        """The error that the value is not what would be right."""
        return self.wrong(f"expected {right}, found {_shown(self.value)}")

    def wrong(self, fact: str) -> UsageError:
        """The error that a fact about the value is."""
        return _Placed(f"{self.place}: {fact}" if self.place else fact)

    def _inside(self, name: str) -> str:
        if not name.isidentifier():
            return f"{self.place}[{name!r}]"
        return f"{self.place}.{name}" if self.place else name


class _Placed(UsageError):
    """An error that says where it is."""


@dataclass(frozen=True)
class _Checked:
    field: Field

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UsageError) and not isinstance(error, _Placed):
            raise self.field.wrong(str(error)) from None


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else "") if shown else "none"


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple | dict):
        kind, part = ("a list", "") if not isinstance(value, dict) else ("an object", " fields")
        return f"{kind} of {len(value)}{part}"
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
