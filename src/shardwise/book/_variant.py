"""The entry of an in-place or out variant: its original's rule, unless experiments refute that."""

from collections.abc import Sequence
from functools import partial

from ..calls import Call
from ..experiments import ExperimentPolicy
from ..rules import Entry, derived, is_covered, variant_by_hand
from ..synthesis import contradicted
from ._by_hand import by_hand, by_hand_as_given
from ._calls import calls_of, of_one_kind
from ._entry import found_for

# Calls of a variant on which its original's rule is tested.
_CALLS = 3


def confirmed_as_given(name: str, original: Entry, calls: Sequence[Call], why: str) -> Entry | None:
    """The entry of a variant of an operator with a hand-written rule, unless a call as it is refutes that; `why` says
    what keeps discovery from it."""
    rows_of = partial(variant_by_hand, original=original.op)
    entry = by_hand_as_given(name, of_one_kind(calls_of(name, calls)), rows_of, why, like=original.op)
    return entry if _is_unrefuted(entry) else None


def _is_unrefuted(entry: Entry) -> bool:
    return bool(entry.evidence) and not entry.evidence["refuted"]


def confirmed(name: str, original: Entry, calls: Sequence[Call]) -> Entry | None:
    """The entry of a variant, unless experiments on a few calls refute its original's rule."""
    calls = of_one_kind(calls_of(name, calls))
    if not calls:
        return Entry(name, "cannot run", f"it takes none of the known calls of {original.op}")
    if original.by_hand:
        entry = by_hand(name, calls, partial(variant_by_hand, original=original.op), like=original.op)
        return entry if _is_unrefuted(entry) or entry.verdict == "random" else None
    if original.rule is None:
        found = found_for(ExperimentPolicy(), calls[0].op, *calls[0].args, **calls[0].kwargs)
        return Entry(name, found.verdict, found.reason) if found.verdict == original.verdict else None
    rule = derived(original.rule, name)
    covered = [call for call in calls if is_covered(call.arguments, original.constant)]
    tested = (covered or calls)[:_CALLS]
    if any(contradicted(rule, call) for call in tested):
        return None
    evidence = {"calls": len(tested)}
    if not rule.clauses:
        reason = f"no row of {original.op} leaves its result in place"
        return Entry(name, "no valid rows", reason, evidence=evidence)
    return Entry(
        name,
        "ruled",
        rule=rule,
        like=original.op,
        constant=original.constant,
        alike=original.alike,
        real_partials=original.real_partials,
        evidence=evidence,
    )
