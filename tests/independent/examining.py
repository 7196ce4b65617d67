"""One overload under test: recorded calls as they are, then calls with changes, each with the rows the book gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from .calls import Call, Shape
from .changes import changed, whole_if_call
from .checking import Outcome, Whole, check
from .lookup import origin, rows_of

# The rows of a call whose outputs have these shapes; None where they are not known.
Rows = Callable[[Call, Sequence[Shape | None]], list[str] | None]


@dataclass
class Examined:
    """What became of one call; `skipped` says why it was not checked."""

    source: str = ""
    skipped: str = ""
    outcome: Outcome = field(default_factory=Outcome)


def examine(
    calls: Sequence[Call],
    number: int,
    seed: int,
    rows: Rows = rows_of,
    mark: Callable[[str], None] = lambda text: None,
) -> Examined:
    """Check the recorded call of this number, or, behind them, a changed one: it follows from seed and number."""
    if number < len(calls):
        mark(str(calls[number]))
        return _examined(whole_if_call(calls[number]), f"{seed} {number}", rows, mark)
    random = Random(f"{seed} {calls[0].name} {number}")
    whole = None
    for _ in range(8):
        call = changed(random.choice(calls), random, calls)
        if call is not None:
            mark(str(call))
            whole = whole_if_call(call)
        if whole is not None:
            break
    return _examined(whole, f"{seed} {number}", rows, mark)


def _examined(whole: Whole | None, seed: str, rows: Rows, mark: Callable[[str], None]) -> Examined:
    if whole is None:
        return Examined(
            skipped="does not run, or not twice alike, or not as its kernel for meta tensors says"
        )
    found = rows(whole.call, whole.shapes)
    if not found:
        why = "the book says nothing of such calls" if found is None else "the book has no rows"
        return Examined(whole.call.source, skipped=why)
    called = str(whole.call)
    outcome = check(whole.call, found, seed, mark=lambda row: mark(f"{called}\n{row}"))
    for findings in (outcome.refuted, outcome.rounding):
        findings[:] = [replace(f, origin=origin(whole.call, whole.shapes, f.row)) for f in findings]
    return Examined(whole.call.source, outcome=outcome)
