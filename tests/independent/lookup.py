"""What the library says of a call: its rows as text, and which clause of which rule gives a row."""

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from shardwise.calls import Call as LibraryCall
from shardwise.rules import Entry, book, book_rows, hand_written, write

from .calls import Call, Shape


def rows_of(call: Call, outputs: Sequence[Shape | None]) -> list[str] | None:
    """The rows of a call whose outputs have these shapes; None where the book does not know such calls."""
    rows = book_rows(_stated(call, outputs))
    return None if rows is None else [row.text for row in rows]


def use_book(folder: Path) -> None:
    """Look up rows in this book instead of the shipped one. Of one that is half built, take the entries so far."""
    if not (folder / "index.yaml").is_file():
        files = {path.stem: path for path in (folder / "state").glob("*.json")}

        def entry(op: str) -> Entry | None:
            return Entry.from_document(json.loads(files[op].read_text()), entry) if op in files else None

        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder)
        entries = [found for op in files if (found := entry(op)) is not None]
        write(folder, entries, torch.__version__.partition("+")[0], {})
    os.environ["SHARDWISE_BOOK"] = str(folder)
    book.cache_clear()
    known.cache_clear()


@cache
def known() -> frozenset[str]:
    """The overloads of which the book speaks."""
    return frozenset((*book().verdicts, *hand_written()))


def origin(call: Call, outputs: Sequence[Shape | None], row: str) -> str:
    """The clause that gives a row; `by hand` for a rule that is code."""
    entry = book().entry(call.name)
    if call.name in hand_written() or (entry is not None and entry.by_hand):
        return "by hand"
    if entry is None or entry.rule is None:
        return "rows of single calls"
    stated = _stated(call, outputs)
    for clause in entry.rule.clauses:
        rows = replace(entry, rule=replace(entry.rule, clauses=(clause,))).rows(stated)
        if rows is not None and row in [r.text for r in rows]:
            return str(clause)
    return "?"


def _stated(call: Call, outputs: Sequence[Shape | None]) -> LibraryCall:
    """The call as the library takes it."""
    args, kwargs = call.split_arguments
    return LibraryCall(call.op, tuple(args), kwargs, () if call.written else tuple(outputs))
