"""The entry of an operator whose rule is written by hand: every row that it gives for a few calls is tested.

A row agrees with the experiments, or one refutes it, or it is undecided: no experiment gave values that could tell.
Experiments change sizes, and a rule may claim a row for the sizes of the call alone (windows side by side, whole groups
of channels). So a counterexample counts if the rule claims the row for the counterexample's own call, too; otherwise
the row is run on the call as it is.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..calls import Call, facts, overload
from ..errors import UsageError
from ..experiments import Verdict, check_as_is, check_rows
from ..placements import Row
from ..rules import Entry

Judgement = Literal["agreeing", "refuted", "undecided"]
Rows = Callable[[Call], list[Row] | None]

# Calls that are tested, and numbers of ranks on which they run as they are.
_CALLS, _RANKS = 3, (2, 3, 4)


def by_hand(name: str, calls: Sequence[Call], rows_of: Rows, like: str | None = None) -> Entry:
    """The entry of an operator with a hand-written rule, from experiments on a few calls."""
    if facts(overload(name)).random:
        return Entry(name, "random", f"{name} is nondeterministic", like=like, by_hand=True)
    tested = []
    for call in [c for c in calls if _can_run(c)][:_CALLS]:
        verdicts = check_rows(call, rows_of(call) or [])
        tested.append(({v.row: _judged(call, v, rows_of) for v in verdicts}, call))
    return _entry(name, tested, "", like)


def by_hand_as_given(
    name: str, calls: Sequence[Call], rows_of: Rows, why: str, like: str | None = None
) -> Entry:
    """The entry of an operator with a hand-written rule whose kernel does not survive experiments, with the reason: the
    rows were run on calls as they are."""
    dense = [c for c in calls if _can_run(c)][:_CALLS]
    tested = [({row: _as_given(call, row) for row in rows_of(call) or []}, call) for call in dense]
    reason = f"experiments are left out, {why}: the rows were run on calls as they are"
    return _entry(name, tested, reason, like)


def refusal(entries: Sequence[Entry]) -> str | None:
    """Why a book with these entries must not be written: rules written by hand that experiments refute."""
    wrong = [entry for entry in entries if entry.evidence.get("refuted")]
    return "; ".join(f"the hand-written rule of {e.op} is wrong: {e.reason}" for e in wrong) or None


def _entry(
    name: str, tested: Sequence[tuple[dict[Row, Judgement], Call]], reason: str, like: str | None
) -> Entry:
    """A call is refuted if one of its rows is, and undecided if one of its others is."""
    counts: Counter[str] = Counter()
    for judged, call in tested:
        found = set(judged.values())
        counts[next((j for j in ("refuted", "undecided") if j in found), "agreeing")] += 1
        for row in (row for row, judgement in judged.items() if judgement == "refuted"):
            reason = f"{row.text} does not hold for {call}"
    evidence: dict[str, Any] = {"calls": len(tested), "rows": sum(len(judged) for judged, _ in tested)}
    evidence |= {kind: counts[kind] for kind in ("agreeing", "refuted", "undecided")}
    return Entry(name, "ruled", reason, like=like, evidence=evidence if tested else {}, by_hand=True)


def _judged(call: Call, verdict: Verdict, rows_of: Rows) -> Judgement:
    row, example = verdict.row, verdict.counterexample
    if example is not None and _is_claimed(row, example.experiment.call, rows_of):
        return "refuted"
    return "agreeing" if verdict and example is None else _as_given(call, row)


def _is_claimed(row: Row, call: Call, rows_of: Rows) -> bool:
    try:
        return row in (rows_of(call) or ())
    except UsageError:  # a kernel takes what torch's account of its shapes refuses
        return False


def _as_given(call: Call, row: Row) -> Judgement:
    held = [holds for ranks in _RANKS for holds in check_as_is(call, [row], ranks).values()]
    if not all(held):
        return "refuted"
    return "agreeing" if held and any(map(_varies, call.run())) else "undecided"


def _varies(result: Any) -> bool:
    """False for what agrees with many rows by chance: nothing, one number everywhere, NaN."""
    if not isinstance(result, Tensor):
        return False
    finite = result[result.isfinite()]
    return finite.numel() > 1 and bool((finite != finite[0]).any())


def _can_run(call: Call) -> bool:
    """True if a call runs and gives tensors that can be compared."""
    try:
        results = call.run()
    except Exception:
        return False  # samples may be made to raise
    return all(not isinstance(r, Tensor) or r.layout == torch.strided for r in results)
