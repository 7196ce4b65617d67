"""The study of one operator: sweep, discover every call, synthesize a rule, hold it against calls it has not seen."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError
from ..rules import DIM_ARGUMENTS, Reading, Rule
from ._call import Call
from ._discover import discover
from ._found import Found
from ._ops import op_name
from ._sweep import Sweep, sweep
from ._synthesize import Observed, agrees, synthesize_clauses

# Calls a rule is built from and held against at first; disagreeing calls are built from in the next round.
BUILD = 25
HOLD = 40
ROUNDS = 5

Example = tuple[list[Any], dict[str, Any]]


@dataclass(frozen=True)
class Budget:
    """What a study may cost: calls to build from and to hold against, and experiments after which no further call
    is judged (not seconds, so that a study ends alike on every machine)."""

    build: int = BUILD
    hold: int = HOLD
    experiments: float = math.inf


USUAL = Budget()


@dataclass
class Judged:
    call: Call
    found: Found
    outputs: list[Any]


@dataclass
class Study:
    """What was learned about one overload."""

    op: str
    overload: str
    rule: Rule | None
    judged: list[Judged]
    sweep: Sweep
    built_from: int = 0
    held_against: int = 0
    disagreed: list[Call] = field(default_factory=list)
    refused: dict[str, str] = field(
        default_factory=dict
    )  # verdicts of calls without rows to judge, with a reason
    seconds: float = 0.0


def synthesize(
    op: Callable[..., Any], *examples: Example, sweep: Mapping[str, Sequence[Any]] | None = None
) -> Rule:
    """The rule of an operator, from calls of many ranks, sizes and arguments.

    >>> rule = synthesize(torch.softmax)
    >>> [str(clause) for clause in rule.clauses]
    ['S(d) -> S(d) when d != dim']
    """
    study = studies(op, examples, sweep)[0]
    if study.rule is None:
        raise UsageError(
            f"no few clauses yield the rows of {study.overload}: {len(study.disagreed)} of "
            f"{study.held_against} further calls disagree; discover gives the rows of each call"
        )
    return study.rule


def studies(
    op: Callable[..., Any],
    examples: Sequence[Example] = (),
    values: Mapping[str, Sequence[Any]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Study]:
    """One study per overload that the operator reaches, that of most calls first."""
    swept = sweep(op, list(examples), values)
    if not swept.calls:
        raise UsageError(f"no calls of {op_name(op)} are known: give example calls, as in --shape 4,6,8")
    # Calls that reach several overloads are judged whole; they are studied only where there are no others.
    single = [name for name, calls in swept.calls.items() if isinstance(calls[0].op, torch._ops.OpOverload)]
    order = sorted(single or swept.calls, key=lambda name: (-len(swept.calls[name]), name))
    return [study_calls(op_name(op), name, swept, progress) for name in order]


def study_calls(
    op: str,
    overload: str,
    swept: Sweep,
    progress: Callable[[int, int], None] | None = None,
    budget: Budget = USUAL,
    find: Callable[..., Found] = discover,
) -> Study:
    """The study of one overload from the calls of a sweep; `find` is `discover`, or the same in other processes."""
    started = time.process_time()
    pool = _spread(swept.calls[overload])
    judged: list[Judged] = []
    study = Study(op, overload, None, judged, swept)
    experiments = 0

    def judge(count: int) -> list[Judged]:
        fresh: list[Judged] = []
        nonlocal experiments
        while pool and len(fresh) < count and experiments < budget.experiments:
            call = pool.pop(0)
            args, kwargs = call.arguments(call.tensors)
            found = find(call.op, *args, **kwargs)
            experiments += found.experiments
            if found.verdict not in ("rows", "no valid rows"):
                study.refused.setdefault(found.verdict, found.reason)
                continue
            fresh.append(Judged(call, found, _output_shapes(call)))
            if progress is not None:
                progress(len(judged) + len(fresh), budget.build + budget.hold)
        judged.extend(fresh)
        # Where most calls depend on the values, one that does not is an accident (argmax over a dim of size 1), and so
        # are rows of a call that refuses most values (a mask with more places than there are values to put there).
        usual = sorted(j.found.ignores_values for j in judged)[len(judged) // 2] if judged else False
        most = max((j.found.generators for j in judged), default=0)
        judged[:] = [
            j for j in judged if j.found.ignores_values == usual and j.found.generators >= 0.75 * most
        ]
        return [j for j in fresh if j in judged]

    building = judge(budget.build)
    held: list[Judged] = []
    for _ in range(ROUNDS):
        if not building:
            break
        candidate = _fit(overload, building)
        if candidate is None:
            break
        held += judge(max(0, budget.hold - len(held)))
        wrong = [j for j in held if not agrees(candidate, _observe(j, candidate.reading))]
        study.built_from, study.held_against = len(building), len(held)
        study.disagreed = [j.call for j in wrong]
        if not wrong:
            study.rule = candidate
            break
        building += wrong[:12]
        held = [j for j in held if j not in building]
    study.seconds = time.process_time() - started
    if study.rule is not None:
        study.rule = _with_evidence(study)
    return study


def confirms(rule: Rule, call: Call, found: Found) -> bool:
    """True if the rule yields what was found for a call."""
    return agrees(rule, Observed.of(call, found, rule.reading, _output_shapes(call)))


def _output_shapes(call: Call) -> list[Any]:
    outputs = call.run([t.clone() for t in call.tensors])
    return [tuple(o.shape) if isinstance(o, Tensor) else None for o in outputs]


def _spread(calls: list[Call]) -> list[Call]:
    """Calls of different ranks and argument lists in turn, so that few of them show much."""
    kinds: dict[Any, list[Call]] = {}
    for call in calls:
        kinds.setdefault(tuple(t.ndim for t in call.tensors), []).append(call)
    queues = [kinds[k] for k in sorted(kinds, key=lambda k: -sum(k))]
    spread = []
    while any(queues):
        spread += [queue.pop(0) for queue in queues if queue]
    return spread


def _fit(overload: str, building: Sequence[Judged]) -> Rule | None:
    """The rule with the fewest clauses, under any way of reading the dim arguments."""
    best: Rule | None = None
    for reading in _readings(building):
        clauses = synthesize_clauses([_observe(j, reading) for j in building])
        if clauses is not None and (best is None or len(clauses) < len(best.clauses)):
            best = Rule(overload, tuple(clauses), reading)
    return best


def _readings(building: Sequence[Judged]) -> Iterator[Reading]:
    """Ways of reading the arguments that can make a difference for these calls, the plain one first."""
    names = {name for j in building for _, name, _ in j.call.named_leaves()}
    named = bool(names & set(DIM_ARGUMENTS))
    for broadcast in (False, True):
        for dims_of in ("input", "output") if named else ("input",):
            for no_dims in ("all", "none") if named else ("all",):
                yield Reading(dims_of, no_dims, broadcast)


def _observe(judged: Judged, reading: Reading) -> Observed:
    return Observed.of(judged.call, judged.found, reading, judged.outputs)


def _with_evidence(study: Study) -> Rule:
    assert study.rule is not None
    generators = sorted({g for j in study.judged for e in j.found.evidence.values() for g in e})
    evidence = {
        "torch": torch.__version__.split("+")[0],
        "calls": study.built_from,
        "held_out": study.held_against,
        "experiments": sum(j.found.experiments for j in study.judged),
        "generators": generators,
    }
    front = study.op if study.op.startswith("torch.") and study.op != study.overload else None
    return replace(study.rule, evidence=evidence, front=front)
