"""Asking the book: the rule of an operator, the rows of a call."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from ..calls import Call, Dispatched, dispatched, must_run, overload, registered, resolve_op
from ..errors import UsageError
from ..placements import Row
from ._book import Book
from ._domain import possible
from ._editions import SHIPPED, edition
from ._hand import hand_rows, is_by_hand, rows_besides
from ._partials import results_fit
from ._rule import Rule
from ._variants import is_in_place, rows_in_place


@functools.cache
def book() -> Book:
    """The book in use, as it is for the running torch: the shipped one, or that which SHARDWISE_BOOK names, a folder
    with a whole book or with what differs from the shipped one. Of another torch's, what this one lacks is left out."""
    folder, running = Path(os.environ.get("SHARDWISE_BOOK") or SHIPPED), torch.__version__.split("+")[0]
    found = edition(folder, running)
    if found.torch == running:
        return found
    # Names without a dot are those of OpInfos that reach no operator.
    return found.without(op for op in found.verdicts if "." in op and registered(op) is None)


def rule(op: Callable[..., Any] | str) -> Rule:
    """The book's rule of an operator: an overload, a packet, a function such as `torch.softmax`, or a name.

    >>> print(rule(torch.softmax))
    aten._softmax.default
      S(d) -> S(d) when d != dim
    """
    name = _name(op)
    named = book().overloads(name)
    if not named:
        raise UsageError(
            f"the book has no operator {name!r}: shardwise.synthesize finds the rule of any other"
        )
    entries = [entry for entry in map(book().entry, named) if entry is not None]
    ruled = next((entry.rule for entry in entries if entry.rule is not None), None)
    if ruled is None:
        first = entries[0]
        why = "it is written by hand" if first.by_hand else f"its verdict is {first.verdict!r}"
        raise UsageError(
            f"the book has no clauses of {first.op}, {why}: "
            "shardwise.rows or shardwise.discover give the rows of one call"
        )
    return ruled


def rows(op: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> list[Row]:
    """The rows of a call, from the book: nothing is run, so tensors may be on any device, the meta device included.

    >>> [str(row) for row in rows(torch.softmax, torch.rand(4, 6, 8), 1)]
    ['S(0) -> S(0)', 'S(2) -> S(2)']
    """
    call = Call(op if callable(op) else resolve_op(op), args, kwargs)
    front = None if isinstance(call.op, OpOverload) else _front(call)
    judged = call if front is None else front.judged
    found = book_rows(judged)
    if found is None:
        entry = book().entry(judged.name)
        verdict = f"its verdict is {entry.verdict!r}" if entry is not None else "it is not in the book"
        raise UsageError(
            f"the book has no rows for this call of {judged.name} ({verdict}): "
            "shardwise.discover finds them by experiment"
        )
    return found if front is None else list(dict.fromkeys(map(front.user_row, found)))


def _front(call: Call) -> Dispatched:
    """What a function becomes with these arguments, if that is one overload."""
    with must_run(str(call)):
        front = dispatched(call.on_meta())
    if not front.is_front:
        names = ", ".join(front.overloads) or "no overload"
        raise UsageError(f"{call.name} reaches {names} with these arguments: ask for the rows of each")
    return front


def book_rows(call: Call) -> list[Row] | None:
    """Rows for a call of an overload: by its hand-written rule, else by the book's; None if there is neither."""
    if is_by_hand(call.name):
        return hand_rows(call)
    entry = book().entry(call.name)
    if entry is None:
        return None
    if entry.by_hand and entry.like is not None:
        return variant_by_hand(call, entry.like)
    return entry.rows(call)


def offered_rows(call: Call) -> list[Row] | None:
    """Rows for a call of an overload, those whose ranks communicate last; None if neither a rule written by hand nor
    the book's speaks of it."""
    rows = book_rows(call)
    return None if rows is None else [*rows, *rows_besides(call)]


def rows_left(call: Call) -> list[Row] | None:
    """Rows for what earlier axes of a mesh leave of a call; None where they are those of the whole call, since its rule
    does not read sizes, and where the book has none."""
    if not is_by_hand(call.name):
        entry = book().entry(call.name)
        if entry is not None and entry.rule is not None and not entry.rule.reads_sizes:
            return None
    return offered_rows(call)


def variant_by_hand(call: Call, original: str) -> list[Row]:
    """The rows of a call of an in-place or out variant of an operator whose rule is written by hand; without those that
    need a local form, which experiments on variants do not run."""
    rows = hand_rows(Call.named(overload(original), call.arguments, call.made or None))
    assert rows is not None
    rows = [row for row in possible(rows, call) if results_fit(row, call)]
    return rows_in_place(rows, call.op) if is_in_place(call.op) else [r for r in rows if r.local is None]


def _name(op: Callable[..., Any] | str) -> str:
    if isinstance(op, str):
        return op
    if isinstance(op, OpOverload | OpOverloadPacket):
        return str(op)
    return str(getattr(op, "__name__", op))
