"""What one operator's entry in the book says: a study of it where it is studied, a confirmation where it is a variant.

All of this runs in a process of its own, with a limit on its CPU time: a kernel that crashes or hangs costs that
process, and is met again more carefully, one call and one process at a time.
"""

import re
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from ..discover import (
    ENOUGH,
    Budget,
    Call,
    Crash,
    Found,
    Policy,
    Study,
    Sweep,
    confirms,
    discover,
    run_isolated,
    study_calls,
    sweep,
)
from ..dtensor import OverloadCall
from ..errors import UsageError
from ..placements import Row
from ..rules import (
    DIM_ARGUMENTS,
    UNIMPORTANT,
    Case,
    Entry,
    Rule,
    book_rows,
    constants,
    derived,
    is_by_hand,
    named_arguments,
    overload,
    plain,
    variant_by_hand,
)

# What a study may cost: more for an operator with several inputs, which may broadcast, and more for one with other
# arguments, on which conditions can depend.
_ONE_INPUT = Budget(build=6, hold=4, experiments=30_000)
_MORE_INPUTS = Budget(build=9, hold=6, experiments=30_000)
_WITH_ARGUMENTS = Budget(build=12, hold=14, experiments=50_000)

# Calls that a sweep looks for, which is far from all that there are.
_ENOUGH = (60, 50, 45, 40)

# CPU seconds of one study and of one call met alone, and how long it may take when others use the machine, too.
_STUDY, _CALL, _PATIENCE = 20, 6, 30

# With more inputs than this, sums are the only partials that are tried.
_MANY_INPUTS = 2

# Calls of an operator without a rule whose rows are kept; calls that confirm a variant; calls met one by one;
# calls that a hand-written rule is held against, and at least that one with conditions must be.
_CASES, _CONFIRMING, _CAREFUL, _BY_HAND, _HELD = 12, 2, 4, 3, 4


def learn(name: str, calls: Sequence[OverloadCall]) -> Entry:
    """The entry of an operator from calls of it, or of the operator of which it is a variant."""
    result = _limited(partial(_studied, name, calls), _STUDY)
    if not isinstance(result, Crash):
        return result
    if any(str(call.op) != name for call in calls):
        return Entry(name, "crashed", f"a native kernel ended the process with {result}")
    # Without the sweep, whose strange shapes crash some kernels, and one process for each call.
    founds: list[Found] = []
    met = list(calls[:_CAREFUL])
    for call in met:
        found: Any = Crash()
        for policy in (Policy(), Policy(empty=False)):
            found = _limited(partial(_bare, call.op, *call.args, policy=policy, **call.kwargs), _CALL)
            if not isinstance(found, Crash):
                break
        crashed = Found(name, (), "crashed", f"a native kernel ended the process with {found}")
        founds.append(crashed if isinstance(found, Crash) else found)
    again = _limited(partial(_studied_again, name, met, founds), _STUDY)
    if isinstance(again, Crash):
        return Entry(name, "crashed", f"a native kernel ended the process with {again}")
    return again


def learn_variant(name: str, original: Entry, calls: Sequence[OverloadCall]) -> Entry:
    """The entry of an in-place or out variant: its original's rule where experiments confirm that, else its own.
    `calls` are the variant's or the original's."""
    result = _limited(partial(_confirmed, name, original, calls), _CALL)
    return result if isinstance(result, Entry) else learn(name, calls)


def _limited(function: Callable[[], Any], seconds: int) -> Any:
    """The function's result in a process with this much CPU time."""

    def run() -> Any:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        return function()

    return run_isolated(run, seconds * _PATIENCE)


def _studied(name: str, calls: Sequence[OverloadCall]) -> Entry:
    op, calls = overload(name), _calls_of(name, calls)
    examples = [(list(c.args), dict(c.kwargs)) for c in _of_one_kind(calls)]
    if any(t.layout != torch.strided or t.is_quantized for c in calls[:1] for t in c.tensors):
        return Entry(name, "cannot run", "it is only called with sparse or quantized tensors")
    if is_by_hand(name):
        return _by_hand(name, calls, book_rows)
    if "._foreach_" in name:
        return _entry(_study(name, _of_all_alike(op, examples), Budget()), calls)
    study = _swept_study(name, op, examples, _ENOUGH, _budget(op))
    if study.disagreed and study.rule is None:
        # A rule that most calls agree with: the exceptions are worth more calls.
        study = _swept_study(name, op, examples, ENOUGH, Budget())
    return _entry(study, calls)


def _swept_study(name: str, op: Any, examples: list[Any], enough: Sequence[int], budget: Budget) -> Study:
    swept = sweep(op, examples, enough=enough)
    if name not in swept.calls:
        swept = Sweep({name: [Call.of(op, *example) for example in examples]})
    return _study(name, swept, budget)


def _study(name: str, swept: Sweep, budget: Budget) -> Study:
    """A study that keeps some calls, where there are few, to hold the rule against."""
    build = min(budget.build, -(-2 * len(swept.calls[name]) // 3))
    return study_calls(name, name, swept, budget=replace(budget, build=build), find=_found)


def _budget(op: Any) -> Budget:
    arguments = [a for a in op._schema.arguments if a.name not in UNIMPORTANT]
    inputs = sum("Tensor" in str(a.type) for a in arguments)
    if inputs < len(arguments):
        return _WITH_ARGUMENTS
    return _ONE_INPUT if inputs == 1 else _MORE_INPUTS


def _by_hand(
    name: str,
    calls: Sequence[OverloadCall],
    rows_of: Callable[..., list[Row] | None],
    like: str | None = None,
) -> Entry:
    """The entry of an operator with a hand-written rule: experiments on a few calls, and how many of them find every
    row that it gives where the operator itself is run on the pieces."""
    judged, agreeing, experiments = 0, 0, 0
    verdict, reason = "ruled", ""
    for call in calls[:_BY_HAND]:
        found = _found(call.op, *call.args, **call.kwargs)
        if found.verdict not in ("rows", "no valid rows"):
            verdict, reason = ("random", found.reason) if found.verdict == "random" else (verdict, reason)
            continue
        given = rows_of(name, call.args, call.kwargs) or []
        held = {(row.inputs, row.outputs) for row in found.rows}
        judged += 1
        agreeing += all((row.inputs, row.outputs) in held for row in given if row.local is None)
        experiments += found.experiments
    evidence = {"calls": judged, "agreeing": agreeing, "experiments": experiments}
    return Entry(name, verdict, reason, like=like, evidence=evidence if judged else {}, by_hand=True)


def _of_one_kind(calls: Sequence[OverloadCall]) -> list[OverloadCall]:
    """The calls that have real numbers wherever any of them has (integers and truth values have fewer partials, which
    would look like exceptions), and tensors wherever any of them has (a plain number in their place is read as one).
    Dims of size 1 look like exceptions, too; the sweep tries them where operands broadcast."""
    kinds: list[dict[str, str]] = []
    for call in calls:
        arguments = named_arguments(call.op, call.args, call.kwargs)
        kinds.append({name: _kind(value) for name, value in arguments.items()})
    kept = []
    for call, kind in zip(calls, kinds, strict=True):
        best = {n: min((other[n] for other in kinds), key=_KINDS.index) for n in kind}
        if all(kind[n] == best[n] or "none" in (kind[n], best[n]) for n in kind):
            kept.append(call)
    telling = [c for c in kept if all(size > 1 for t in c.tensors for size in t.shape)]
    return telling or kept or list(calls)


_KINDS = ("real", "other tensor", "number", "none")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return "real" if value.is_floating_point() else "other tensor"
    return "number" if isinstance(value, bool | int | float | complex) else "none"


def _of_all_alike(op: Any, examples: Sequence[Any]) -> Sweep:
    """Calls of an operator on lists, and the same with one dim more or fewer on every tensor: what is true of one
    tensor of a list is true of the next."""
    calls = []
    for change in (
        lambda t: t,
        lambda t: t.expand(3, *t.shape).clone(),
        lambda t: t[0].clone() if t.ndim > 1 else t,
    ):
        for args, kwargs in examples:
            changed = pytree.tree_map(
                lambda v, c=change: c(v) if isinstance(v, Tensor) and v.ndim else v, (args, kwargs)
            )
            calls.append(OverloadCall(op, tuple(changed[0]), changed[1], ""))
    return Sweep({str(op): [Call.of(c.op, c.args, c.kwargs) for c in calls if _runs(c)]})


def _studied_again(name: str, calls: Sequence[OverloadCall], founds: Sequence[Found]) -> Entry:
    known = {str(call): found for call, found in zip(calls, founds, strict=True)}
    swept = Sweep({name: [Call.of(c.op, c.args, c.kwargs) for c in calls]})
    find = partial(_known, known)
    return _entry(study_calls(name, name, swept, find=find), calls, find)


def _known(known: dict[str, Found], op: OpOverload, *args: Any, **kwargs: Any) -> Found:
    return known[str(OverloadCall(op, args, kwargs, ""))]


def _found(op: OpOverload, *args: Any, policy: Policy | None = None, **kwargs: Any) -> Found:
    """What discovery finds; a call that it cannot work with (a dtype that numpy lacks, say) is one that cannot run."""
    policy = policy or Policy()
    call = Call.of(op, args, kwargs)
    if len(call.tensors) - sum(len(group) - 1 for group in call.lists) > _MANY_INPUTS:
        policy = replace(policy, partials=("sum",))
    try:
        return discover(op, *args, policy=policy, **kwargs)
    except UsageError as error:
        return Found(str(op), (), "cannot run", str(error))
    except Exception as error:
        return Found(str(op), (), "cannot run", f"{type(error).__name__}: {error}".splitlines()[0])


def _bare(op: OpOverload, *args: Any, policy: Policy | None = None, **kwargs: Any) -> Found:
    """The same without the experiments, which do not travel between processes."""
    return replace(_found(op, *args, policy=policy, **kwargs), trials={}, dispatched=None)


def _entry(study: Study, calls: Sequence[OverloadCall], find: Callable[..., Found] = _found) -> Entry:
    """The entry that a study comes to; where it found no rule, the rows of the calls at hand."""
    name = study.overload
    if study.rule is not None and study.rule.clauses and _is_tried(study):
        evidence = {**study.rule.evidence, "generators": len(study.rule.evidence["generators"])}
        del evidence["torch"]
        rule = replace(study.rule, evidence={}, front=None)
        return Entry(name, "ruled", rule=rule, constant=_constants(study), evidence=evidence)
    evidence = {"calls": len(study.judged), "experiments": sum(j.found.experiments for j in study.judged)}
    if not study.judged:
        verdict, reason = _refusal(study)
        return Entry(name, verdict, reason)
    if not any(j.found.rows for j in study.judged):
        return Entry(name, "no valid rows", "every row but the replicated one was refuted", evidence=evidence)
    cases = [
        Case.of(named_arguments(call.op, call.args, call.kwargs), found.rows)
        for call in calls[:_CASES]
        if (found := find(call.op, *call.args, **call.kwargs)).verdict in ("rows", "no valid rows")
    ]
    return Entry(name, "rows only", "no few clauses yield its rows", cases=tuple(cases), evidence=evidence)


def _is_tried(study: Study) -> bool:
    """Conditions are guesses until calls that were not used to find them agree."""
    assert study.rule is not None
    return study.held_against >= _HELD or not any(clause.when for clause in study.rule.clauses)


_UNEQUAL = re.compile(r"(\w+) != (?!None)")


def _constants(study: Study) -> dict[str, Any]:
    """Arguments that were the same in all calls, and the values that were met of those that must differ from one: it
    is not known what others do. A dtype does not matter to an operator that ignores the values."""
    calls = [named_arguments(j.call.op, *j.call.arguments(j.call.tensors)) for j in study.judged]
    found = constants(calls)
    conditions = [text for clause in study.rule.clauses for text in clause.when] if study.rule else []
    for name in {m[1] for text in conditions if (m := _UNEQUAL.match(text))} - {"d"}:
        if name in calls[0] and name not in DIM_ARGUMENTS:
            found[name] = {"one of": sorted({plain(call[name]) for call in calls}, key=str)}
    if all(j.found.ignores_values for j in study.judged):
        found.pop("dtype", None)
    op: Any = overload(study.overload)
    fractions = {a.name for a in op._schema.arguments if "number" in str(a.type) or "float" in str(a.type)}
    return {n: float(v) if n in fractions and type(v) is int else v for n, v in found.items()}


def _refusal(study: Study) -> tuple[str, str]:
    """The verdict on an operator none of whose calls could be judged."""
    named = ("random", "data-dependent shape", "crashed")
    for verdict in named:
        if verdict in study.refused:
            return verdict, study.refused[verdict]
    return "cannot run", next(iter(study.refused.values()), "no call of it that can be judged is known")


# -- variants


def _calls_of(name: str, calls: Sequence[OverloadCall]) -> Sequence[OverloadCall]:
    """Calls of an operator; of a variant, those of its original that it takes."""
    op = overload(name)
    assert isinstance(op, OpOverload)
    if all(call.op is op for call in calls):
        return calls
    names = {a.name for a in op._schema.arguments}
    outs = [a for a in op._schema.arguments if a.is_out]
    positional = [a.name for a in op._schema.arguments if not a.kwarg_only]
    found = []
    for call in calls:
        arguments = named_arguments(call.op, call.args, call.kwargs)
        given = {k: v for k, v in arguments.items() if k in names}
        args = tuple(given.pop(n) for n in positional)
        if outs:
            results = [t for t in pytree.tree_leaves(call.op(*call.args, **call.kwargs)) if t is not None]
            if str(outs[0].type).startswith("List"):
                given[outs[0].name] = [torch.empty_like(t) for t in results]
            elif len(results) == len(outs):
                given |= {a.name: torch.empty_like(t) for a, t in zip(outs, results, strict=True)}
            else:
                continue
        found.append(OverloadCall(op, args, given, call.source))
    return [call for call in found if _runs(call)]


def _runs(call: OverloadCall) -> bool:
    args, kwargs = pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (call.args, call.kwargs)
    )
    try:
        call.op(*args, **kwargs)
    except Exception:
        return False  # its original broadcasts or promotes where it cannot
    return True


def _returning(op: OpOverload) -> Callable[..., Any]:
    """An operator that returns nothing, returning what it wrote to."""

    def run(first: Any, *rest: Any, **kwargs: Any) -> Any:
        op(first, *rest, **kwargs)
        return first

    return run


def _confirms_silent(rule: Rule, call: Call, found: Found) -> bool:
    """`confirms` for an operator that returns nothing, from what was found for it by way of `_returning`."""
    kept = {row.inputs for row in found.rows if row.outputs == row.inputs[: len(row.outputs)]}
    return {row.inputs for row in rule.rows_of(*call.arguments(call.tensors), [])} == kept


def _variant_rows(original: str, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Row]:
    return variant_by_hand(name, original, args, kwargs)


def _confirmed(name: str, original: Entry, calls: Sequence[OverloadCall]) -> Entry | None:
    """The entry of a variant if experiments on a few calls agree with its original's rule."""
    calls = _calls_of(name, calls)
    if not calls:
        return Entry(name, "cannot run", f"it takes none of the known calls of {original.op}")
    if original.by_hand:
        entry = _by_hand(name, calls, partial(_variant_rows, original.op), like=original.op)
        right = (
            entry.verdict == "ruled"
            and entry.evidence
            and entry.evidence["agreeing"] == entry.evidence["calls"]
        )
        return entry if right or entry.verdict == "random" else None
    rule = derived(original.rule, name) if original.rule is not None else None
    experiments = 0
    for call in calls[:_CONFIRMING]:
        silent = not call.op._schema.returns
        found = _found(_returning(call.op) if silent else call.op, *call.args, **call.kwargs)
        experiments += found.experiments
        if found.verdict not in ("rows", "no valid rows"):
            return Entry(name, found.verdict, found.reason) if found.verdict == original.verdict else None
        if rule is None or not (_confirms_silent if silent else confirms)(
            rule, Call.of(call.op, call.args, call.kwargs), found
        ):
            return None
    evidence = {"calls": min(len(calls), _CONFIRMING), "experiments": experiments}
    assert rule is not None
    if not rule.clauses:
        return Entry(
            name, "no valid rows", f"no row of {original.op} leaves its result in place", evidence=evidence
        )
    return Entry(name, "ruled", rule=rule, like=original.op, constant=original.constant, evidence=evidence)
