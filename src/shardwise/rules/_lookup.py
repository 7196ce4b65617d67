"""Asking the book: the rule of an operator, the rows of a call."""

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from ..calls import Recorder, Shape, facts, must_run, named_arguments, on_meta, output_shapes, overload
from ..errors import UsageError
from ..placements import Row
from ._book import Book, tensors_in
from ._rule import Rule
from ._variants import is_in_place, rows_in_place
from .hand._register import hand_rows, is_by_hand

SHIPPED = Path(__file__).parent / "book"


@functools.cache
def book() -> Book:
    """The book in use: the shipped one, or that in the folder which SHARDWISE_BOOK names."""
    chosen = Book(Path(os.environ.get("SHARDWISE_BOOK") or SHIPPED))
    running = torch.__version__.split("+")[0]
    if chosen.torch != running:
        warnings.warn(
            f"the rule book is about torch {chosen.torch}, but this is torch {running}: build one for it with "
            "`shardwise book build --out DIR` and set SHARDWISE_BOOK=DIR",
            stacklevel=2,
        )
    return chosen


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
    name, order = _name(op), None
    if not isinstance(op, OpOverload) and not (isinstance(op, str) and op in book().verdicts):
        name, args, kwargs, order = _dispatched(op, args, kwargs)
    found = book_rows(name, args, kwargs)
    if found is None:
        entry = book().entry(name)
        verdict = f"its verdict is {entry.verdict!r}" if entry is not None else "it is not in the book"
        raise UsageError(
            f"the book has no rows for this call of {name} ({verdict}): "
            "shardwise.discover finds them by experiment"
        )
    if order is not None:
        found = [Row(tuple(r.inputs[i] for i in order), r.outputs, r.shards, r.local) for r in found]
    return found


def book_rows(
    op: str, args: Sequence[Any], kwargs: dict[str, Any], outputs: Sequence[Shape | None] | None = None
) -> list[Row] | None:
    """Rows for a call of an overload: by its hand-written rule, else by the book's; None if there is neither. `outputs`
    are the shapes of the call's outputs, where they are known."""
    if is_by_hand(op):
        return hand_rows(op, args, kwargs, _shapes(op, args, kwargs, outputs))
    entry = book().entry(op)
    if entry is None:
        return None
    if entry.by_hand and entry.like is not None:
        return variant_by_hand(op, entry.like, args, kwargs, outputs)
    return entry.rows(args, kwargs, outputs)


def variant_by_hand(
    variant: str,
    original: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    outputs: Sequence[Shape | None] | None = None,
) -> list[Row]:
    """The rows of an in-place or out variant of an operator whose rule is written by hand; without those that need a
    local form, which experiments on variants do not run."""
    op = overload(variant)
    arguments = named_arguments(op, args, kwargs)
    rows = hand_rows(original, (), arguments, _shapes(original, (), arguments, outputs or None))
    assert rows is not None
    return rows_in_place(rows, op) if is_in_place(op) else [row for row in rows if row.local is None]


def _shapes(
    op: str, args: Sequence[Any], kwargs: dict[str, Any], outputs: Sequence[Shape | None] | None
) -> Sequence[Shape | None]:
    return output_shapes(overload(op), args, kwargs) if outputs is None else outputs


def _name(op: Callable[..., Any] | str) -> str:
    if isinstance(op, str):
        return op
    if isinstance(op, OpOverload | OpOverloadPacket):
        return str(op)
    return str(getattr(op, "__name__", op))


def _dispatched(op: Callable[..., Any] | str, args: Any, kwargs: Any) -> tuple[str, Any, Any, list[int]]:
    """The one overload that a function reaches with these arguments, with what it is given, and for each of the
    user's tensors its position there."""
    function: Any = op
    if isinstance(op, str):
        function = torch
        for part in op.removeprefix("torch.").split("."):
            function = getattr(function, part, None) or getattr(torch.ops, part, None)
    if not callable(function):
        raise UsageError(f"unknown op {op!r}: use a name such as torch.mm or aten.mm.default")
    args, kwargs = [on_meta(a) for a in args], {k: on_meta(v) for k, v in kwargs.items()}
    recorder = Recorder()
    with must_run(_name(op), args, kwargs), torch.no_grad(), recorder:
        function(*args, **kwargs)
    calls = [c for c in recorder.calls if not facts(c[0]).identity]
    given = [id(t) for t in tensors_in((*args, *kwargs.values()))]
    reached = [id(t) for t in tensors_in((*calls[0][1], *calls[0][2].values()))] if len(calls) == 1 else []
    if sorted(given) != sorted(reached) or len(calls) != 1:
        names = ", ".join(dict.fromkeys(str(c[0]) for c in calls)) or "no overload"
        raise UsageError(f"{_name(op)} reaches {names} with these arguments: ask for the rows of each")
    func, reached_args, reached_kwargs, _ = calls[0]
    return str(func), reached_args, reached_kwargs, [reached.index(t) for t in given]
