"""Witnesses: the evidence for a condition of a clause.

A condition is kept only with two calls that differ in it alone, one where the row holds and one where it does not.
They are searched among the calls that were judged; where these differ in more, a call is changed in what the
condition refers to, and the row is tested. If the row fails although the changed call satisfies the condition, the
condition was a coincidence of the calls, and the changed call shows it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..calls import Call
from ..experiments import ExperimentPolicy, changes_nothing, refuted
from ..placements import Row
from ..rules import Case, Clause, Rule, names_in, partials_fit
from ._columns import Column, applied
from ._refutation import bound_call
from ._sweep import Design, in_domain
from ._synthesize import BoundObservation, key_of

# Calls from which changed ones are made, and elements beyond which those take long.
_STARTS, _ELEMENTS = 4, 4_000
# What conditions say about shapes, and the columns that change those.
_OF_SHAPES, _SHAPE_COLUMNS = {"ndim", "outdim", "size", "ones", "len"}, ("dims", "sizes", "list")


@dataclass(frozen=True)
class Tried:
    """A row of a clause in a call, tried."""

    call: Call
    row: Row


@dataclass(frozen=True)
class Witness:
    """Two calls that differ in `condition` alone: the clause's row holds in the one and fails in the other."""

    clause: Clause
    condition: str
    holds: Tried
    fails: Tried

    def to_document(self) -> dict[str, Any]:
        return {
            "clause": str(self.clause),
            "condition": self.condition,
            "holds": _document(self.holds),
            "fails": _document(self.fails),
        }


def _document(tried: Tried) -> dict[str, Any]:
    return Case.of(tried.call.arguments, [tried.row]).to_document()


@dataclass(frozen=True)
class _Instance:
    observed: BoundObservation
    d: int | None
    row: Row
    met: bool  # the condition in question
    holds: bool


def find_witness(
    rule: Rule,
    clause: Clause,
    condition: str,
    observed: Sequence[BoundObservation],
    design: Design | None,
    policy: ExperimentPolicy,
) -> Witness | list[Call]:
    """The witness of a condition; where there is none, the calls that show that the condition is not what matters."""
    instances = list(_instances(clause, condition, observed))
    holding = [i for i in instances if i.met and i.holds and not i.observed.exempt]
    failing = [i for i in instances if not i.met and not i.holds]
    for good in holding:
        for bad in failing:
            if good.observed is bad.observed or _differ_only_in(condition, good, bad):
                return Witness(
                    clause, condition, Tried(good.observed.call, good.row), Tried(bad.observed.call, bad.row)
                )
    if design is None:
        return []
    return _constructed(rule, clause, condition, holding, failing, design, policy)


def _instances(clause: Clause, condition: str, observed: Sequence[BoundObservation]) -> Iterator[_Instance]:
    """The rows of a clause in all calls that meet its other conditions."""
    others = [text for text in clause.when if text != condition]
    for o in observed:
        scope, groups, output_groups = o.bound.scope, o.bound.groups, o.bound.output_groups
        for d in clause.values(scope, groups, output_groups):
            row = clause.instance(scope, groups, output_groups, d)
            if row is None or row.is_replicated or not all(scope.evaluate(text, d) for text in others):
                continue
            yield _Instance(o, d, row, bool(scope.evaluate(condition, d)), o.holds(key_of(row)))


def _differ_only_in(condition: str, first: _Instance, second: _Instance) -> bool:
    """True if two calls have the same arguments and shapes, apart from what the condition refers to."""
    names = names_in(condition)
    one, other = first.observed.bound.scope, second.observed.bound.scope
    if not names & _OF_SHAPES and list(one.inputs) != list(other.inputs):
        return False
    return one.arguments.keys() == other.arguments.keys() and all(
        value == other.arguments[name] for name, value in one.arguments.items() if name not in names
    )


def _constructed(
    rule: Rule,
    clause: Clause,
    condition: str,
    holding: Sequence[_Instance],
    failing: Sequence[_Instance],
    design: Design,
    policy: ExperimentPolicy,
) -> Witness | list[Call]:
    names = names_in(condition)
    wanted = {*names, *(_SHAPE_COLUMNS if names & _OF_SHAPES else ())}
    relevant = [column for column in design.columns if column.name in wanted]
    refuting: list[Call] = []
    for start in failing[:_STARTS]:
        for tried in _changed(rule, clause, condition, start, relevant, meets=True):
            if not refuted(tried.call, [tried.row], policy):
                return Witness(clause, condition, tried, Tried(start.observed.call, start.row))
            refuting.append(tried.call)
    for start in holding[:_STARTS]:
        for tried in _changed(rule, clause, condition, start, relevant, meets=False):
            if refuted(tried.call, [tried.row], policy):
                return Witness(clause, condition, Tried(start.observed.call, start.row), tried)
    return refuting


def _changed(
    rule: Rule, clause: Clause, condition: str, start: _Instance, columns: Sequence[Column], meets: bool
) -> Iterator[Tried]:
    """The row in the call changed so that it meets the condition, or does not, and all others as before."""
    others = [text for text in clause.when if text != condition]
    for column in columns:
        for change in column.changes[1:]:
            call = applied(start.observed.call, [change])
            if call is None or not in_domain(call, _ELEMENTS):
                continue
            bound, outputs = bound_call(rule, call)
            if changes_nothing(call.tensors, outputs):
                continue  # every row that keeps its placement holds for a no-op
            scope = bound.scope
            row = clause.instance(scope, bound.groups, bound.output_groups, start.d)
            if row is None or row.is_replicated:
                continue
            if not partials_fit((*row.inputs, *row.outputs), [*call.tensors, *outputs]):
                continue
            if start.d is not None and start.d not in clause.values(scope, bound.groups, bound.output_groups):
                continue
            if bool(scope.evaluate(condition, start.d)) == meets and all(
                scope.evaluate(text, start.d) for text in others
            ):
                yield Tried(call, row)
