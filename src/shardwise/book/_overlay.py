"""The book of another torch: what differs from the shipped one.

Rules are facts about mathematics and kernels, so most stand in the next torch as they are. Each is tested there on the
calls that its samples make; what they refute is studied anew, and so are operators that came.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..calls import Call
from ..experiments import Crash, ExperimentPolicy, limited, refuted
from ..rules import Book, Entry, book_rows
from ._by_hand import by_hand
from ._calls import calls_of
from ._entry import found_for
from ._learn import STUDY, learn, learn_variant

# Calls on which an entry is tested.
_CALLS = 12


def learn_again(name: str, known: Entry, calls: Sequence[Call]) -> Entry:
    """The known entry if it stands, else a new one."""
    stands = limited(partial(_stands, known, calls), STUDY)
    return known if stands is True or isinstance(stands, Crash) else learn(name, calls)


def learn_variant_again(name: str, known: Entry, original: Entry, calls: Sequence[Call]) -> Entry:
    """The known entry of a variant if it stands, else a new one. A rule that it has from its original is tested as when
    the book was built: a test of more calls would find differences that are none between versions of torch."""
    return learn_again(name, known, calls) if known.like is None else learn_variant(name, original, calls)


def _stands(known: Entry, calls: Sequence[Call]) -> bool:
    """False if an experiment refutes what an entry says of one of the calls."""
    tested = list(calls_of(known.op, calls))[:_CALLS]
    if known.by_hand:
        return not by_hand(known.op, tested, book_rows).evidence.get("refuted")
    if known.rule is None and not known.cases:
        found = [found_for(ExperimentPolicy(), c.op, *c.args, **c.kwargs).verdict for c in tested[:1]]
        return known.verdict == "crashed" or found in ([], [known.verdict])
    return not any(refuted(call, known.rows(call) or []) for call in tested)


def differences(
    base: Book, entries: Sequence[Entry], exists: Sequence[str]
) -> tuple[list[Entry], dict[str, list[str]]]:
    """The entries that differ from those of a book, and its operators that are gone or were not tested; `exists` are
    those of its operators that this torch has."""
    changed = [e for e in entries if (old := base.entry(e.op)) is None or _says(old) != _says(e)]
    untold = base.verdicts.keys() - {entry.op for entry in entries}
    gone = [op for op in untold if op not in exists]
    untested = [op for op in untold if op in exists]
    return changed, {"gone": gone, "untested": untested}


def _says(entry: Entry) -> dict[str, Any]:
    """What an entry says of its operator, whatever its evidence: the signal that ended an experiment is none of it."""
    return {n: value for n, value in entry.to_document().items() if n not in ("evidence", "reason")}
