"""`install()`: the whole book given to DTensor, and `uninstall()`.

What DTensor lacks is registered, what it has is extended, what the audit refuted is replaced on request. Only names are
read when installing; the rows of an operator are read from the book when DTensor first meets it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch._ops import OpOverload

from ..errors import UsageError
from ..placements import Row
from ..rules import Book, book, book_rows, overload
from ._read import registration
from ._register import extend, register, unregister
from ._wrong import wrong_operators

# It has no outputs to place: DTensor takes the number itself.
_LEFT_ALONE = {"aten._local_scalar_dense.default"}

_installed: dict[OpOverload, "BookRule"] = {}
_mode: list[str | None] = []


@dataclass(frozen=True)
class BookRule:
    """The book's rows of one operator, as `register` wants them."""

    op: OpOverload

    @property
    def name(self) -> str:
        return f"the book's rule of {self.op}"

    def rows(self, *args: Any, **kwargs: Any) -> list[Row]:
        return self.rows_by_shape(args, kwargs, None)

    def rows_by_shape(self, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any) -> list[Row]:
        found = book_rows(str(self.op), args, dict(kwargs), outputs)
        writes = any(argument.is_out for argument in self.op._schema.arguments)
        return [_with_outs(row) if writes else row for row in found or ()]


def _with_outs(row: Row) -> Row:
    """DTensor counts the tensors that results are written to as inputs; they lie as the results do."""
    return Row((*row.inputs, *(p for p in row.outputs if p is not None)), row.outputs, row.shards, row.local)


def install(replace: Literal["wrong"] | None = None) -> None:
    """Give DTensor the book: rules for operators that it has none for, and the rows that its own rules lack.

    With `replace="wrong"` the rules that the audit refuted are replaced by the book's. Operators without a valid row
    are replicated. Takes effect at once, for all meshes; `uninstall()` undoes it. Installing again does nothing, or
    changes `replace`.
    """
    if replace not in (None, "wrong"):
        raise UsageError(f"replace={replace!r} is not known: use replace='wrong', or leave it out")
    if _mode == [replace]:
        return
    uninstall()
    wrong = wrong_operators() if replace == "wrong" else frozenset()
    try:
        for op in _operators(book()):
            rule = BookRule(op)
            if str(op) in wrong:
                extend(rule, replaces=True)
            elif registration(op) == "none":
                register(rule)
            else:
                extend(rule)
            _installed[op] = rule
    except UsageError:
        uninstall()
        raise
    _mode.append(replace)


def uninstall() -> None:
    """Give every operator back to what DTensor had for it before `install()`, if that was called."""
    for op in list(_installed):
        unregister(_installed.pop(op))
    _mode.clear()


def _operators(contents: Book) -> list[OpOverload]:
    found = []
    for name in contents.verdicts:
        if name.count(".") == 2 and name not in _LEFT_ALONE:
            op = overload(name)
            assert isinstance(op, OpOverload)
            found.append(op)
    return found
