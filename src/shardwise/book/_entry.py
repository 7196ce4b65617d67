"""The entry of one operator: a study of its calls, or experiments on the rows of its hand-written rule."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..calls import UNIMPORTANT, Call, facts, overload
from ..errors import UsageError, first_line
from ..experiments import ExperimentPolicy, Found, refuted
from ..placements import is_partial
from ..rules import Case, Clause, Entry, always_alike, book_rows, constants, is_by_hand, merged, plain
from ..synthesis import Budget, Study, Sweep, in_domain, study_calls, sweep
from ._by_hand import by_hand
from ._calls import calls_of, of_equal_shapes, of_one_kind
from ._spurious import without_spurious

# What a study may cost: more for an operator with several inputs, which may broadcast, and more for one with other
# arguments, on which conditions can depend.
_ONE_INPUT = Budget(build=8, hold=8, experiments=20_000, triples=40, random=10)
_MORE_INPUTS = Budget(build=12, hold=12, experiments=20_000, triples=80, random=20)
_WITH_ARGUMENTS = Budget(build=25, hold=40, experiments=40_000, triples=150, random=40)

# For what takes longer than a study may: fewer calls, but not without those made to refute the rule.
_SMALL = Budget(build=8, hold=8, experiments=8_000, triples=40, random=20, clauses=8)

# A budget without calls made to refute a rule, and how many calls a design has.
_UNREFUTED = Budget(triples=0, random=0)
_PAIRS = 120

# Calls of a study that are repeated with other numbers than real ones.
_OTHER_NUMBERS = 8

# With more inputs than this, sums are the only partials that are tried.
_MANY_INPUTS, _SUMS, _LINEAR = 2, ("sum",), ("sum", "avg")

# Calls of an operator without a rule whose rows are kept; calls on which a rule with conditions must at least be
# validated.
_CASES, _HELD = 12, 4

_PARTLY = "for some calls more holds than it says: no short list of clauses yields all of their rows"

# What conditions say about shapes.
_OF_SHAPES = {"ndim", "outdim", "size", "ones"}

_UNEQUAL = re.compile(r"(\w+) != (?!None)")


# How much a study may cost: as usual, less, or no calls that are made to refute the rule.
Effort = Literal["usual", "small", "unrefuted"]


def studied(
    name: str,
    calls: Sequence[Call],
    find: Callable[..., Found] | None = None,
    effort: Effort = "usual",
) -> Entry:
    """The entry of an operator, from calls of it or of its original; `find` is what discovers one call. Some studies
    take too long, and some kernels do not survive calls that are made to refute a rule: `effort` says so."""
    find = find or partial(found_for, ExperimentPolicy())
    op, calls = overload(name), calls_of(name, calls)
    examples = of_one_kind(calls)
    if any(t.layout != torch.strided or t.is_quantized for c in calls[:1] for t in c.tensors):
        return Entry(name, "cannot run", "it is only called with sparse or quantized tensors")
    if is_by_hand(name):
        return by_hand(name, calls, book_rows)
    if facts(op).foreach:
        return _of_lists(name, examples, calls, find)
    budget = _SMALL if effort == "small" else _budget(op)
    if effort == "unrefuted":
        budget = replace(budget, triples=0, random=0)
    study = _study(name, _swept(name, op, examples), budget, find)
    return entry_of(study, calls, find)


def _of_lists(
    name: str, examples: Sequence[Call], calls: Sequence[Call], find: Callable[..., Found]
) -> Entry:
    """The entry of an operator on lists of tensors. Whether it keeps the order of values depends on the signs of its
    numbers, which are not varied: with numbers, it is tried with linear partials alone."""
    swept = of_equal_shapes(name, examples)
    if all(isinstance(leaf, Tensor) for call in examples for _, leaf in call.leaves()):
        return entry_of(_study(name, swept, _UNREFUTED, find), calls, find)
    find = partial(found_for, ExperimentPolicy(partials=_LINEAR))
    entry = entry_of(_study(name, swept, _UNREFUTED, find), calls, find)
    return replace(entry, evidence={**entry.evidence, "partials": list(_LINEAR)})


def studied_with_sums(name: str, calls: Sequence[Call]) -> Entry:
    """`studied` with no partials but sums, for an operator whose other rows follow no short list of clauses."""
    entry = studied(name, calls, partial(found_for, ExperimentPolicy(partials=_SUMS)))
    reason = "no short list of clauses yields the rows with other partials than sums: they are left out"
    return replace(entry, reason=reason, evidence={**entry.evidence, "partials": list(_SUMS)})


def _swept(name: str, op: Any, examples: Sequence[Call]) -> Sweep:
    swept = sweep(op, examples, most=_PAIRS, as_alike=True)
    return swept if name in swept.calls else Sweep({name: list(examples)})


def _study(name: str, swept: Sweep, budget: Budget, find: Callable[..., Found]) -> Study:
    """A study that keeps some calls, where there are few, to hold the rule against."""
    build = min(budget.build, -(-2 * len(swept.calls[name]) // 3))
    return study_calls(name, name, swept, budget=replace(budget, build=build), find=find)


def _budget(op: Any) -> Budget:
    arguments = [a for a in op._schema.arguments if a.name not in UNIMPORTANT]
    inputs = sum("Tensor" in str(a.type) for a in arguments)
    if inputs < len(arguments):
        return _WITH_ARGUMENTS
    return _ONE_INPUT if inputs == 1 else _MORE_INPUTS


def found_for(policy: ExperimentPolicy, op: OpOverload, /, *args: Any, **kwargs: Any) -> Found:
    """What discovery finds; a call that it cannot work with (a dtype that numpy lacks, say) is one that cannot run."""
    call = Call(op, args, kwargs)
    if len(call.tensors) - sum(len(group) - 1 for group in call.lists) > _MANY_INPUTS:
        policy = replace(policy, partials=_SUMS)
    try:
        return policy.discover(op, *args, **kwargs)
    except UsageError as error:
        return Found(str(op), (), "cannot run", str(error))
    except Exception as error:
        return Found(str(op), (), "cannot run", f"{type(error).__name__}: {first_line(error)}")


def entry_of(study: Study, calls: Sequence[Call], find: Callable[..., Found]) -> Entry:
    """The entry that a study gives; where it found no rule, the rows of the known calls."""
    name = study.overload
    if "random" in study.refused and find(calls[0].op, *calls[0].args, **calls[0].kwargs).verdict == "random":
        return Entry(name, "random", study.refused["random"])
    rule = None if study.rule is None else without_spurious(replace(study.rule, evidence={}, front=None))
    if rule is not None and not study.refutations_tried:
        rule = replace(rule, clauses=tuple(c for c in rule.clauses if not c.names & _OF_SHAPES))
    if rule is not None and _is_mostly_undefined(study):
        rule = replace(rule, clauses=merged([c for c in rule.single_clauses if not _keeps_order(c)]))
    if rule is not None and rule.clauses and _is_tried(study):
        assert study.rule is not None
        evidence = {**study.rule.evidence, "generators": len(study.rule.evidence["generators"])}
        del evidence["torch"]
        reason = _PARTLY if study.unexplained else ""
        entry = Entry(
            name,
            "ruled",
            reason,
            rule=rule,
            constant=_constants(study),
            alike=_alike(study),
            evidence=evidence,
        )
        return replace(entry, real_partials=not _holds_for_others(entry, study))
    evidence = {
        "calls": len(study.observations),
        "experiments": sum(j.found.experiments for j in study.observations),
    }
    if not study.observations:
        verdict, reason = _refusal(study)
        return Entry(name, verdict, reason)
    if not any(j.found.rows for j in study.observations):
        return Entry(name, "no valid rows", "every row but the replicated one was refuted", evidence=evidence)
    return Entry(
        name,
        "rows only",
        "no short list of clauses yields its rows",
        cases=tuple(_cases(calls[:_CASES], find)),
        evidence=evidence,
    )


def _is_mostly_undefined(study: Study) -> bool:
    """True if most results are NaN (zeta of most numbers): an order among them shows little."""
    return sum(o.undefined for o in study.observations) > 0.5 * len(study.observations)


def _alike(study: Study) -> list[list[str]]:
    """The arguments whose tensors always had one shape; what an operator on lists does to one of its tensors does not
    depend on the next."""
    calls = [o.call.arguments for o in study.observations]
    return [] if facts(overload(study.overload)).foreach else always_alike(calls)


def _holds_for_others(entry: Entry, study: Study) -> bool:
    """False if an experiment with integers or complex numbers refutes rows with partials, which studies of real numbers
    found: quotients of integers are rounded."""
    real = [o.call for o in study.observations if all(t.is_floating_point() for t in o.call.tensors)]
    for dtype in (torch.int64, torch.complex128):
        for call in real[:_OTHER_NUMBERS]:
            other = call.with_tensors([(4 * t.double()).round().to(dtype) for t in call.tensors])
            if not in_domain(other):
                break
            rows = entry.rows(other) or []
            if refuted(other, [row for row in rows if any(map(is_partial, row.inputs))]):
                return False
    return True


def _keeps_order(clause: Clause) -> bool:
    return any(term.inside in ("max", "min") for term in clause.inputs if term.kind == "P")


def _cases(calls: Sequence[Call], find: Callable[..., Found]) -> Iterator[Case]:
    """The rows of some calls. Where others depend on the values, hundreds of rows hold for one that does not (the
    gradient of a count is zero) and serve nobody."""
    found = [(call, find(call.op, *call.args, **call.kwargs)) for call in calls]
    judged = [(call, f) for call, f in found if f.verdict in ("rows", "no valid rows")]
    diverse = [(call, f) for call, f in judged if not f.ignores_values]
    for call, f in diverse or judged:
        yield Case.of(call.arguments, f.rows)


def _is_tried(study: Study) -> bool:
    """Conditions are guesses until calls that were not used to find them agree."""
    assert study.rule is not None
    tried = max(study.validated_on, study.refutations_tried)
    return tried >= _HELD or not any(clause.when for clause in study.rule.clauses)


def _constants(study: Study) -> dict[str, Any]:
    """Arguments that were the same in all calls, and the values that were tried of those that must differ from one, or
    of words, flags and integers if nothing was tried to refute the rule: it is not known what others do. A dtype does
    not matter to an operator that ignores the values."""
    calls = [o.call.arguments for o in study.observations]
    found, op = constants(calls), overload(study.overload)
    conditions = [text for clause in study.rule.clauses for text in clause.when] if study.rule else []
    named = {m[1] for text in conditions if (m := _UNEQUAL.match(text))} - {"d"}
    if not study.refutations_tried and not facts(op).foreach:
        named |= {name for name in calls[0] if all(isinstance(c[name], bool | int | str) for c in calls)}
    for name in named - found.keys():
        if name in calls[0] and name not in facts(op).dims:
            found[name] = {"one of": sorted({plain(call[name]) for call in calls}, key=str)}
    if all(j.found.ignores_values for j in study.observations):
        found.pop("dtype", None)
    fractions = {a.name for a in op._schema.arguments if "number" in str(a.type) or "float" in str(a.type)}
    return {n: float(v) if n in fractions and type(v) is int else v for n, v in found.items()}


def _refusal(study: Study) -> tuple[str, str]:
    """The verdict on an operator none of whose calls could be judged."""
    named = ("random", "data-dependent shape", "crashed")
    for verdict in named:
        if verdict in study.refused:
            return verdict, study.refused[verdict]
    return "cannot run", next(iter(study.refused.values()), "no call of it that can be judged is known")
