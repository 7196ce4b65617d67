"""`install()`: registers the whole book with DTensor; `uninstall()` undoes it.

Missing rules are registered, existing rules are extended, refuted rules are replaced on request. Only names are
read when installing; the rows of an operator are read from the book when DTensor first dispatches it.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch._ops import OpOverload
from torch.distributed.tensor import DTensor, Replicate

from ..calls import Call, facts, registered
from ..errors import UsageError
from ..expansion import Choice
from ..experiments import Confirmations
from ..placements import Row, is_shard
from ..rules import Book, book, book_rows, rows_left
from ._by_form import handle_by_form
from ._hooks import refresh
from ._read import registration
from ._register import count_tensors, extend, register, unregister
from ._reshape_in_place import handle, remove_handlers
from ._state import bridge
from ._wrong import wrong_operators


@dataclass(frozen=True)
class BookRule:
    """The book's rows of one operator, in the form that `register` takes."""

    op: OpOverload

    @property
    def name(self) -> str:
        return f"the book's rule of {self.op}"

    def rows(self, *args: Any, **kwargs: Any) -> list[Row]:
        return self.rows_by_shape(args, kwargs, None)

    def rows_by_shape(self, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any) -> list[Row]:
        call = Call(self.op, tuple(args), kwargs, outputs)
        found = book_rows(call) or []
        if outputs is not None and not found:
            # The row that every call has: with no other, only this says how many outputs there are.
            made = tuple(None if shape is None else Replicate() for shape in call.outputs)
            return [Row((Replicate(),) * count_tensors((*args, *kwargs.values())), made)]
        if any(argument.is_out for argument in self.op._schema.arguments):
            return [_with_outs(row) for row in found]
        if self.op in DTensor._op_dispatcher.sharding_propagator.op_to_shape_and_stride_idx:
            return [_without_sizes(row) for row in found]
        return found

    def rows_left(self, call: Call) -> list[Row] | None:
        return rows_left(call)


def _with_outs(row: Row) -> Row:
    """DTensor counts `out=` tensors as inputs; they are placed as the results."""
    return Row((*row.inputs, *(p for p in row.outputs if p is not None)), row.outputs, row.shards, row.local)


def _without_sizes(row: Row) -> Row:
    """DTensor itself passes the local sizes of a sharded output to some operators."""
    first = row.outputs[0]
    sized = row.local == "sizes" and first is not None and is_shard(first)
    return Row(row.inputs, row.outputs, row.shards) if sized else row


def _refuses_refuted(confirmations: Confirmations, call: Call, choice: Choice) -> bool:
    """Whether a choice may be used: not if an experiment refutes it, which is said once."""
    if call.op in DTensor._op_dispatcher.sharding_propagator.op_to_shape_and_stride_idx:
        choice = Choice(choice.mesh, tuple(map(_with_sizes, choice.rows)))
    if (known := confirmations.known(call, choice)) is not None:
        return known.outcome != "refuted"
    [tried] = confirmations.of([(call, choice)])
    if tried.outcome == "refuted":
        warnings.warn(
            f"{call} is not run by {choice}: an experiment refutes it, {tried.reason}", stacklevel=2
        )
    return tried.outcome != "refuted"


def _with_sizes(row: Row) -> Row:
    """The row as DTensor runs it: with local sizes where the output is sharded."""
    first = row.outputs[0]
    sized = first is not None and is_shard(first) and row.local is None
    return Row(row.inputs, row.outputs, row.shards, "sizes") if sized else row


def install(*, replace: Literal["wrong"] | None = None, confirm: bool = False) -> None:
    """Register the book with DTensor: rules for operators without one, and the rows that its own rules lack.

    With `replace="wrong"` the rules that the audit refuted are replaced by the book's. Operators without a valid row
    are replicated; registered rules of your own stay in use. With `confirm`, a call is run once at a small size
    with the rows that are chosen for it before these are first used, in a process of its own; what that refutes is not
    used, with a warning. Takes effect at once, for all meshes; `uninstall()` undoes it. Installing again does nothing,
    or changes `replace` and `confirm`.
    """
    if replace not in (None, "wrong"):
        raise UsageError(f"replace={replace!r} is not known: use replace='wrong', or leave it out")
    wanted: Literal["extending", "replacing"] = "extending" if replace is None else "replacing"
    if bridge.book == wanted and (bridge.confirms is not None) == confirm:
        return
    uninstall()
    wrong = wrong_operators() if replace == "wrong" else frozenset()
    try:
        for op in _operators(book()):
            if op in bridge.rules:  # the user's own, which stays
                continue
            if facts(op).reshapes_in_place:
                handle(op)
                continue
            rule = BookRule(op)
            if str(op) in wrong:
                extend(rule, replaces=True)
            elif registration(op) == "none":
                register(rule)
            else:
                extend(rule)
        handle_by_form()
    except BaseException:  # do not leave the book half installed, whatever was raised
        uninstall()
        raise
    bridge.book = wanted
    bridge.confirms = partial(_refuses_refuted, Confirmations()) if confirm else None


def uninstall() -> None:
    """Restore what DTensor had for every operator before `install()`, if that was called."""
    for op in [op for op, entry in bridge.rules.items() if isinstance(entry.rule, BookRule)]:
        unregister(op)
    remove_handlers()
    bridge.book = bridge.confirms = None


def reset() -> None:
    """Undo all changes to DTensor: those of `register`, `extend`, `install()` and `use_search()`."""
    uninstall()
    for op in list(bridge.rules):
        unregister(op)
    bridge.search = None
    refresh()


def _operators(contents: Book) -> list[OpOverload]:
    """The operators of the book that this torch has."""
    found = [registered(name) for name in contents.verdicts if name.count(".") == 2]
    return [op for op in found if isinstance(op, OpOverload) and not _gives_a_number(op)]


def _gives_a_number(op: OpOverload) -> bool:
    """True for an operator that has no outputs to place: DTensor reads the number itself."""
    return [str(returned.type) for returned in op._schema.returns] == ["number"]
