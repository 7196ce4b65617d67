"""The entry of an in-place or out variant: its original's rule, where experiments confirm that."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch._ops import OpOverload

from ..calls import Call
from ..experiments import ExperimentPolicy, Found
from ..rules import Entry, Rule, derived, is_covered, variant_by_hand
from ..synthesis import confirms
from ._by_hand import by_hand, by_hand_as_given
from ._calls import calls_of, of_one_kind
from ._entry import found_for, partials_tried

# Calls that confirm a variant.
_CONFIRMING = 1


def _returning(op: OpOverload) -> Callable[..., Any]:
    """An operator that returns nothing, returning what it wrote to."""

    def run(first: Any, *rest: Any, **kwargs: Any) -> Any:
        op(first, *rest, **kwargs)
        return first

    return run


def _confirms_silent(rule: Rule, call: Call, found: Found) -> bool:
    """`confirms` for an operator that returns nothing, from what was found for it by way of `_returning`."""
    kept = {row.inputs for row in found.rows if row.outputs == row.inputs[: len(row.outputs)]}
    return {row.inputs for row in rule.rows_of(replace(call, made=()))} == kept


def confirmed_as_given(name: str, original: Entry, calls: Sequence[Call], why: str) -> Entry | None:
    """The entry of a variant of an operator with a hand-written rule, if calls as they are agree with that; `why` says
    what keeps discovery from it."""
    rows_of = partial(variant_by_hand, original=original.op)
    entry = by_hand_as_given(name, of_one_kind(calls_of(name, calls)), rows_of, why, like=original.op)
    return entry if _agrees(entry) else None


def _agrees(entry: Entry) -> bool:
    return bool(entry.evidence) and entry.evidence["agreeing"] == entry.evidence["calls"]


def confirmed(name: str, original: Entry, calls: Sequence[Call]) -> Entry | None:
    """The entry of a variant if experiments on a few calls agree with its original's rule."""
    calls = of_one_kind(calls_of(name, calls))
    if not calls:
        return Entry(name, "cannot run", f"it takes none of the known calls of {original.op}")
    if original.by_hand:
        entry = by_hand(name, calls, partial(variant_by_hand, original=original.op), like=original.op)
        return entry if _agrees(entry) or entry.verdict == "random" else None
    rule = derived(original.rule, name) if original.rule is not None else None
    experiments = 0
    covered = [c for c in calls if is_covered(c.arguments, original.constant)]
    for call in covered[:_CONFIRMING] or calls[:1]:
        silent = not call.schema.returns
        policy = ExperimentPolicy(partials=partials_tried(original))
        found = found_for(policy, _returning(call.op) if silent else call.op, *call.args, **call.kwargs)
        experiments += found.experiments
        if found.verdict not in ("rows", "no valid rows"):
            return Entry(name, found.verdict, found.reason) if found.verdict == original.verdict else None
        if rule is None or not (_confirms_silent if silent else confirms)(rule, call, found):
            return None
    evidence = {"calls": min(max(len(covered), 1), _CONFIRMING), "experiments": experiments}
    assert rule is not None
    if not rule.clauses:
        return Entry(
            name, "no valid rows", f"no row of {original.op} leaves its result in place", evidence=evidence
        )
    return Entry(name, "ruled", rule=rule, like=original.op, constant=original.constant, evidence=evidence)
