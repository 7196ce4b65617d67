"""The study of one operator: sweep, discover every call, synthesize a rule, hold it against calls it has not seen,
and challenge it with calls made to refute it."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..calls import Call, facts, must_run, op_name, reaches_dispatch
from ..display import Block, Heading, Shown
from ..errors import UsageError
from ..experiments import ExperimentPolicy, Found, require_operator
from ..rules import Clause, Reading, Rule
from ._challenge import challenges, contradicted
from ._sweep import Sweep, sweep
from ._synthesize import Observed, agrees, is_sound, synthesize_clauses

# Calls a rule is built from and held against at first; disagreeing calls are built from in the next round.
BUILD = 25
HOLD = 40
ROUNDS = 5
# Calls without effect which a rule must not contradict.
IDLE = 6
# Calls made to refute a rule, and calls that disagree with it from which the next one learns.
CHALLENGES = 30
LEARNED = 12

# One call of an operator: its arguments, and its keyword arguments.
Example = tuple[Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Budget:
    """What a study may cost: calls to build from, to hold against and to challenge the rule with, and experiments after
    which no further call is judged (not seconds, so that a study ends alike on every machine). A rule held against
    fewer than `least` calls is not issued; `partly`, the sound part of one that does not say all is."""

    build: int = BUILD
    hold: int = HOLD
    experiments: float = math.inf
    least: int = 0
    challenges: int = CHALLENGES
    partly: bool = False


USUAL = Budget(least=1)


@dataclass
class Judged:
    call: Call
    found: Found
    outputs: list[Any]
    keeps_values: bool = False


@dataclass
class Study(Shown):
    """What was learned about one overload."""

    op: str
    overload: str
    rule: Rule | None
    judged: list[Judged]
    sweep: Sweep
    built_from: int = 0
    held_against: int = 0
    challenged: int = 0
    disagreed: list[Call] = field(default_factory=list)
    refused: dict[str, str] = field(
        default_factory=dict
    )  # verdicts of calls without rows to judge, with a reason
    seconds: float = 0.0

    def blocks(self) -> Iterator[Block]:
        if self.rule is not None:
            yield from self.rule.blocks()
            return
        yield Heading(1, self.overload)
        further = self.held_against + self.challenged
        why = f": {len(self.disagreed)} of {further} further calls disagree" if further else ""
        yield f"No short list of clauses yields the rows of {len(self.judged)} calls{why}."

    def __repr__(self) -> str:
        what = "no rule" if self.rule is None else f"{len(self.rule.clauses)} clauses"
        return f"<Study {self.overload}: {what}, {len(self.judged)} calls>"


def studies(
    op: Callable[..., Any],
    examples: Sequence[Example] = (),
    *,
    values: Mapping[str, Sequence[Any]] | None = None,
    policy: ExperimentPolicy | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Study]:
    """One study per overload that the operator reaches, those with a rule first, that of most calls before others.

    `examples` are calls to start from, without which torch's own samples serve; `values` those to try for arguments
    by name; `policy` what experiments consider.
    """
    require_operator(op)
    given = [Call(op, args, kwargs) for args, kwargs in examples]
    for call in given:
        with must_run(str(call)):
            call.run()
    swept = sweep(op, given, values)
    if not swept.calls:
        raise UsageError(
            f"no calls of {op_name(op)} are known: give one, as in shardwise.synthesize(op, x, dim=0) or "
            "--shape 4,6,8"
        )
    _require_arguments(op, swept, values or {})
    # Calls that reach several overloads are judged whole; they are studied only where there are no others.
    single = [name for name, calls in swept.calls.items() if reaches_dispatch(calls[0].op)]
    found = [study_calls(op_name(op), name, swept, progress, policy=policy) for name in single or swept.calls]
    return sorted(found, key=lambda s: (s.rule is None, -len(swept.calls[s.overload]), s.overload))


def _require_arguments(op: Callable[..., Any], swept: Sweep, values: Iterable[str]) -> None:
    schemas = [calls[0].schema for calls in swept.calls.values()]
    arguments = [a for schema in schemas if schema is not None for a in schema.arguments]
    known = dict.fromkeys(a.name for a in arguments if "Tensor" not in str(a.type))
    for name in values:
        if name not in known:
            have = ", ".join(known) or "none"
            raise UsageError(
                f"{op_name(op)} has no argument {name!r} whose values could be tried: it has {have}"
            )


def study_calls(
    op: str,
    overload: str,
    swept: Sweep,
    progress: Callable[[int, int], None] | None = None,
    budget: Budget = USUAL,
    policy: ExperimentPolicy | None = None,
    find: Callable[..., Found] | None = None,
) -> Study:
    """The study of one overload from the calls of a sweep under a policy; `find` is the policy's `discover`, or the
    same in other processes."""
    started = time.process_time()
    study = Study(op, overload, None, [], swept)
    policy = policy or ExperimentPolicy()
    _Inquiry(study, budget, policy, find or policy.discover, progress).run()
    study.seconds = time.process_time() - started
    if study.rule is not None:
        study.rule = _with_evidence(study)
    return study


class _Inquiry:
    """A study under way: the calls that wait, and those that turned out idle."""

    def __init__(
        self,
        study: Study,
        budget: Budget,
        policy: ExperimentPolicy,
        find: Callable[..., Found],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.study = study
        self.budget = budget
        self.policy = policy
        self.find = find
        self.progress = progress
        self.calls = study.sweep.calls[study.overload]
        self.waiting = _spread(self.calls)
        self.experiments = 0
        self.idle: list[Judged] = []
        self._judge_idle(_telling(study.sweep.idle.get(study.overload, [])))

    def run(self) -> None:
        study, budget = self.study, self.budget
        building = self._judge(min(budget.build, max(len(self.waiting) // 2, 1)))
        held: list[Judged] = []
        last: Rule | None = None
        for turn in range(ROUNDS):
            building = [j for j in building if j not in self.idle]
            candidate = _fit(study.overload, building, self.idle) if building else None
            if candidate is None:
                break
            last = candidate
            held += self._judge(max(0, budget.hold - len(held)))
            held = [j for j in held if j not in self.idle]
            wrong = [j for j in held if not agrees(candidate, _observe(j, candidate.reading))]
            unsound = [j for j in self.idle if not is_sound(candidate, _observe(j, candidate.reading))]
            study.built_from, study.held_against = len(building), len(held)
            study.disagreed = [j.call for j in (*wrong, *unsound)]
            if not study.disagreed:
                study.disagreed = [call for call, _ in self._challenge(candidate, turn)]
                # What holds for a call that was made to refute a rule may be an accident: the rule need not say it.
                self._judge_idle(study.disagreed[:LEARNED])
            if not study.disagreed:
                if len(held) >= budget.least:
                    study.rule = _as_far_as_seen(candidate, [*building, *held])
                return
            building += wrong[:LEARNED]
            held = [j for j in held if j not in building]
        if budget.partly and last is not None:
            part = _sound_part(last, [*study.judged, *self.idle])
            refuted = {clause for _, clauses in self._challenge(part, ROUNDS) for clause in clauses}
            study.rule = replace(part, clauses=tuple(c for c in part.clauses if c not in refuted))

    def _judge(self, count: int) -> list[Judged]:
        """The next calls that can be judged, up to `count`; those among them that are idle are kept apart."""
        judged, fresh = self.study.judged, list[Judged]()
        while self.waiting and len(fresh) < count and self.experiments < self.budget.experiments:
            if (new := self._judged(self.waiting.pop(0))) is not None:
                fresh.append(new)
                if self.progress is not None:
                    self.progress(len(judged) + len(fresh), self.budget.build + self.budget.hold)
        judged.extend(fresh)
        # Of a call that refuses most values (a mask with more places than there are values to put there) too little
        # is known.
        most = max((j.found.generators for j in judged), default=0)
        judged[:] = [j for j in judged if j.found.generators >= 0.75 * most]
        self.idle.extend(_accidents(judged))
        judged[:] = [j for j in judged if j not in self.idle]
        return [j for j in fresh if j in judged]

    def _judge_idle(self, calls: Sequence[Call]) -> None:
        self.idle.extend(j for call in calls if (j := self._judged(call)) is not None)

    def _judged(self, call: Call) -> Judged | None:
        found = self.find(call.op, *call.args, **call.kwargs)
        self.experiments += found.experiments
        if found.verdict not in ("rows", "no valid rows"):
            self.study.refused.setdefault(found.verdict, found.reason)
            return None
        # Of the thousands of refuted trials nothing is asked any more; keeping them would cost much memory.
        kept = {row.inputs: found.trials[row.inputs] for row in found.rows if row.inputs in found.trials}
        return Judged(call, replace(found, trials=kept), _output_shapes(call), _keeps_values(call))

    def _challenge(self, rule: Rule, seed: int) -> list[tuple[Call, list[Clause]]]:
        """Calls made to refute the rule that do, with the clauses that they refute."""
        tried = list(challenges(self.calls, self.budget.challenges, seed))
        self.study.challenged += len(tried)
        return [(call, clauses) for call in tried if (clauses := contradicted(rule, call, self.policy))]


def _sound_part(rule: Rule, judged: Sequence[Judged]) -> Rule:
    """The clauses that yield nothing but what was found."""
    observed = [_observe(j, rule.reading) for j in judged]
    alone = [replace(rule, clauses=(clause,)) for clause in rule.clauses]
    return replace(rule, clauses=tuple(r.clauses[0] for r in alone if all(is_sound(r, o) for o in observed)))


def _accidents(judged: Sequence[Judged]) -> list[Judged]:
    """Calls that hold more rows than their operator does, by accident of their sizes: where most calls depend on the
    values, one that does not (argmax over a dim of size 1); where some change them, one that does not (a sum over a
    dim of size 1, a transposed vector). A rule need not explain them, but may say nothing wrong about them."""
    ignoring = sorted(j.found.ignores_values for j in judged)
    usual = ignoring[len(ignoring) // 2] if ignoring else False
    changing = any(not j.keeps_values for j in judged if j.found.ignores_values == usual)
    return [j for j in judged if j.found.ignores_values != usual or (changing and j.keeps_values)]


def confirms(rule: Rule, call: Call, found: Found) -> bool:
    """True if the rule yields what was found for a call."""
    return agrees(rule, Observed.of(call, found, rule.reading, _output_shapes(call)))


def _output_shapes(call: Call) -> list[Any]:
    outputs = call.run()
    return [tuple(o.shape) if isinstance(o, Tensor) else None for o in outputs]


def _keeps_values(call: Call) -> bool:
    """True if the only output holds the first input's values in the same order."""
    results = call.run()
    if not call.tensors or len(results) != 1 or not isinstance(results[0], Tensor):
        return False
    first, output = call.tensors[0], results[0]
    return (
        first.dtype == output.dtype
        and first.numel() == output.numel()
        and torch.equal(first.reshape(-1), output.reshape(-1))
    )


def _spread(calls: list[Call]) -> list[Call]:
    """Calls of different ranks and with different words, flags and counts in turn, so that few of them show much."""
    kinds: dict[Any, list[Call]] = {}
    for call in calls:
        ranks = tuple(t.ndim for t in call.tensors)
        words = tuple(
            str(leaf)
            for name, leaf in call.leaves()
            if isinstance(leaf, bool | str) or name in facts(call.op).counts
        )
        kinds.setdefault((ranks, words), []).append(call)
    queues = [kinds[k] for k in sorted(kinds, key=lambda k: (-sum(k[0]), k[1]))]
    spread = []
    while any(queues):
        spread += [queue.pop(0) for queue in queues if queue]
    return spread


def _telling(idle: list[Call]) -> list[Call]:
    """Those of many calls that change nothing with the most dims to shard, of different ranks."""
    return _spread(sorted(idle, key=lambda call: -sum(s > 1 for t in call.tensors for s in t.shape)))[:IDLE]


def _fit(overload: str, building: Sequence[Judged], idle: Sequence[Judged]) -> Rule | None:
    """The rule with the fewest clauses, under any way of reading the dim arguments, that is sound for idle calls."""
    best: Rule | None = None
    for reading in _readings(building):
        observed = [_observe(j, reading) for j in building]
        clauses = synthesize_clauses(observed + [replace(_observe(j, reading), idle=True) for j in idle])
        if clauses is not None and (best is None or len(clauses) < len(best.clauses)):
            best = Rule(overload, tuple(clauses), reading)
    return best


def _as_far_as_seen(rule: Rule, judged: Sequence[Judged]) -> Rule:
    """A list of numbers that every call must give and that was the same in all of them (`expand1` in bilinear's
    `_trilinear`) may decide everything: the rule then speaks of calls with that list alone."""
    seen: dict[str, set[Any]] = {}
    for j in judged:
        for name, value in _observe(j, rule.reading).bound.scope.arguments.items():
            seen.setdefault(name, set()).add(value)
    call = judged[0].call
    schema, known = call.schema, facts(call.op)
    required = {a.name for a in schema.arguments if not a.has_default_value()} if schema else set()
    fixed = [
        f"{name} == {next(iter(values))}"
        for name, values in seen.items()
        if len(values) == 1
        and name in required - {*known.windows, *known.dims}
        and isinstance(next(iter(values)), tuple)
    ]
    return replace(rule, clauses=tuple(replace(c, when=(*c.when, *fixed)) for c in rule.clauses))


def _readings(building: Sequence[Judged]) -> Iterator[Reading]:
    """Ways of reading the arguments that can make a difference for these calls, the plain one first."""
    names = {name for j in building for name, _ in j.call.leaves()}
    named = any(not names.isdisjoint(facts(j.call.op).dims) for j in building)
    operands = any(len(j.call.tensors) > 1 or _is_expanded(j) for j in building)
    for broadcast in (False, True) if operands else (False,):
        for dims_of in ("input", "output") if named else ("input",):
            for no_dims in ("all", "none") if named else ("all",):
                yield Reading(dims_of, no_dims, broadcast)


def _is_expanded(judged: Judged) -> bool:
    """True if the output has the input's dims, repeated."""
    shapes = [tuple(t.shape) for t in judged.call.tensors] + judged.outputs[:1]
    if len(shapes) < 2 or shapes[-1] is None or shapes[0] == shapes[-1]:
        return False
    sizes = zip(reversed(shapes[0]), reversed(shapes[-1]), strict=False)
    return len(shapes[0]) <= len(shapes[-1]) and all(size in (1, out) for size, out in sizes)


def _observe(judged: Judged, reading: Reading) -> Observed:
    return Observed.of(judged.call, judged.found, reading, judged.outputs)


def _with_evidence(study: Study) -> Rule:
    assert study.rule is not None
    generators = sorted({g for j in study.judged for e in j.found.evidence.values() for g in e})
    evidence = {
        "torch": torch.__version__.split("+")[0],
        "calls": study.built_from,
        "held_out": study.held_against,
        "challenged": study.challenged,
        "experiments": sum(j.found.experiments for j in study.judged),
        "generators": generators,
    }
    front = study.op if study.op.startswith("torch.") and study.op != study.overload else None
    return replace(study.rule, evidence=evidence, front=front)
