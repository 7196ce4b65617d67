"""The study of one operator: design calls, discover each, synthesize a rule, validate it on calls it has not seen, try
to refute it, and find witnesses for its conditions."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..calls import Call, Facts, facts, must_run, op_name, reaches_dispatch
from ..display import Block, Heading, Shown
from ..errors import UsageError
from ..experiments import RANKS, ExperimentPolicy, Found, require_operator
from ..rules import Clause, Reading, Rule, merged
from ._refutation import contradicted, random_calls, triples, unusual_calls
from ._sweep import Sweep, spread, sweep
from ._synthesize import MOST_CLAUSES, BoundObservation, agrees, is_sound, synthesize_clauses, yielded
from ._witness import Witness, find_witness

# Calls a rule is built from and validated on at first; disagreeing calls are built from in the next round.
BUILD = 25
HOLD = 40
ROUNDS = 6
# Rounds after which calls are made to refute a rule although it does not explain all yet.
PATIENCE = 3
# Exempt calls, which a rule must not contradict, judged from the start.
EXEMPT = 6
# Calls made to refute a rule: in which every triple of levels occurs, and at random; and how many of those that
# disagree with it the next one learns from.
TRIPLES, RANDOM = 200, 30
LEARNED = 12

# One call of an operator: its arguments, and its keyword arguments.
Example = tuple[Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Budget:
    """What a study may cost: calls to build from, to validate on and to refute the rule with, and experiments on either
    after which no further call is judged (not seconds, so that a study is the same on every machine). A rule that
    fewer than `least` calls validated or failed to refute is not issued; one with more than `clauses` clauses keeps
    those that yield most."""

    build: int = BUILD
    hold: int = HOLD
    experiments: float = math.inf
    least: int = 0
    triples: int = TRIPLES
    random: int = RANDOM
    clauses: int = MOST_CLAUSES


# A rule with more clauses than these is hard to check by reading.
USUAL = Budget(least=1, experiments=10_000, clauses=8)


@dataclass(frozen=True, eq=False)
class Observation:
    """A call with the rows that were found for it, the shapes of its outputs, which share of them is not a number, for
    each argument with tensors whether their values matter, and whether the only output holds the first input's values
    in the same order."""

    call: Call
    found: Found
    outputs: list[Any]
    undefined: float
    matters: dict[str, bool]
    keeps_values: bool

    @classmethod
    def of(cls, call: Call, found: Found) -> "Observation":
        results = call.run()
        return cls(
            call,
            found,
            _shapes(results),
            _undefined(results),
            _what_matters(call, results),
            _keeps_values(call, results),
        )


@dataclass
class Study(Shown):
    """The result for one overload. `unexplained` are calls for which more rows hold than the rule yields, `refused`
    the verdicts of calls without rows to judge, with a reason."""

    op: str
    overload: str
    rule: Rule | None
    observations: list[Observation]
    sweep: Sweep
    built_from: int = 0
    validated_on: int = 0
    refutations_tried: int = 0
    disagreed: list[Call] = field(default_factory=list)
    unexplained: list[Call] = field(default_factory=list)
    witnesses: list[Witness] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    ranks: tuple[int, ...] = RANKS

    def blocks(self) -> Iterator[Block]:
        if self.rule is not None:
            yield from self.rule.blocks()
            return
        yield Heading(1, self.overload)
        yield why_no_rule(self)

    def __repr__(self) -> str:
        what = "no rule" if self.rule is None else f"{len(self.rule.clauses)} clauses"
        return f"<Study {self.overload}: {what}, {len(self.observations)} calls>"


def studies(
    op: Callable[..., Any],
    examples: Sequence[Example] = (),
    *,
    values: Mapping[str, Sequence[Any]] | None = None,
    policy: ExperimentPolicy | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Study]:
    """One study per overload that the operator reaches, those with a rule first, that of most calls before others.

    `examples` are calls to start from, by default torch's own samples; `values` those to try for arguments
    by name; `policy` the options of experiments.
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


def why_no_rule(study: Study) -> str:
    """Why a study found no rule, in one sentence."""
    if not study.observations:
        verdict, reason = next(iter(study.refused.items()), ("cannot run", "no call of it could be judged"))
        return f"{study.overload} has no rule: {verdict}, {reason}"
    if not any(o.found.rows for o in study.observations):
        return (
            f"{study.overload} has no rule: no row held in any of {len(study.observations)} calls, except the "
            "replicated one; shardwise.check shows a counterexample to a row"
        )
    last = f", the last by {study.disagreed[0]}" if study.disagreed else ""
    return (
        f"{study.overload} has no rule: every clause was refuted by some call{last}; shardwise.discover gives the "
        "rows of each call"
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
    policy = policy or ExperimentPolicy()
    study = Study(op, overload, None, [], swept, ranks=tuple(policy.ranks))
    _Search(study, budget, policy, find or policy.discover, progress).run()
    study.seconds = time.process_time() - started
    if study.rule is not None:
        study.rule = _with_evidence(study)
    return study


class _Search:
    """The search for the rule of one overload: the calls that wait to be judged, and those that are exempt, of which a
    rule need not say all that holds, but nothing that does not."""

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
        self.waiting = spread(study.sweep.calls[study.overload])
        self.design = study.sweep.designs.get(study.overload)
        self.exempt: list[Observation] = []
        self.barred: dict[Any, set[str]] = {}
        self._designed: list[Call] | None = None
        exempt = study.sweep.exempt.get(study.overload, [])
        most_dims = sorted(exempt, key=lambda call: -sum(s > 1 for t in call.tensors for s in t.shape))
        self._exempt(spread(most_dims)[:EXEMPT])

    def run(self) -> None:
        study, budget = self.study, self.budget
        building = self._judge(min(budget.build, max(len(self.waiting) // 2, 1)))
        held: list[Observation] = []
        survived = False
        for turn in range(ROUNDS):
            building = [o for o in building if o not in self.exempt]
            fitted = self._fit(building) if building else None
            if fitted is None:
                return
            candidate = fitted
            held += self._judge(max(0, budget.hold - len(held)))
            held = [o for o in held if o not in self.exempt]
            study.built_from, study.validated_on = len(building), len(held)
            wrong = [o for o in held if not agrees(candidate, _bound(o, candidate.reading))]
            unsound = [
                o for o in (*held, *self.exempt) if not is_sound(candidate, _bound(o, candidate.reading))
            ]
            study.disagreed = [o.call for o in unsound]
            survived = False
            if not unsound and (not wrong or turn >= PATIENCE):
                study.disagreed = self._refuting(candidate, turn)
                survived = not study.disagreed
                self._exempt(study.disagreed)
            if not wrong and not study.disagreed and self._is_witnessed(candidate, [*building, *held]):
                break
            if turn < ROUNDS - 1:
                building += wrong[:LEARNED]
                held = [o for o in held if o not in building]
        if max(study.validated_on, study.refutations_tried) >= budget.least:
            study.rule = self._sound_part(candidate, [*building, *held], turn, survived)

    def _judge(self, count: int) -> list[Observation]:
        """The next calls that can be judged, up to `count`; those among them that are exempt are kept apart."""
        judged, fresh, experiments = self.study.observations, list[Observation](), 0
        while self.waiting and len(fresh) < count and experiments < self.budget.experiments:
            if (new := self._observed(self.waiting.pop(0))) is not None:
                fresh.append(new)
                experiments += new.found.experiments
                if self.progress is not None:
                    self.progress(len(judged) + len(fresh), self.budget.build + self.budget.hold)
        judged.extend(fresh)
        # For a call that accepts few kinds of values (a mask with more places than there are values to put there) too
        # little is known.
        most = max((o.found.generators for o in judged), default=0)
        judged[:] = [o for o in judged if o.found.generators >= 0.75 * most]
        self.exempt.extend(_spurious(judged))
        judged[:] = [o for o in judged if o not in self.exempt]
        return [o for o in fresh if o in judged]

    def _exempt(self, calls: Sequence[Call]) -> None:
        self.exempt.extend(o for call in calls if (o := self._observed(call)) is not None)

    def _observed(self, call: Call) -> Observation | None:
        found = self.find(call.op, *call.args, **call.kwargs)
        if found.verdict not in ("rows", "no valid rows"):
            self.study.refused.setdefault(found.verdict, found.reason)
            return None
        # The thousands of refuted candidates are no longer needed; keeping them would take much memory.
        kept = {
            row.inputs: found.candidates[row.inputs] for row in found.rows if row.inputs in found.candidates
        }
        return Observation.of(call, replace(found, candidates=kept))

    def _fit(self, building: Sequence[Observation]) -> Rule | None:
        """The rule that leaves the fewest rows unexplained, then the one with the fewest clauses, under any way of
        reading the dim arguments."""
        best: tuple[tuple[int, int], Rule] | None = None
        for reading in _readings(building):
            observed = [_bound(o, reading) for o in building]
            exempt = [replace(_bound(o, reading), exempt=True) for o in self.exempt]
            clauses, unexplained = synthesize_clauses(observed + exempt, self.barred)
            score = (unexplained, len(clauses))
            if best is None or score < best[0]:
                best = (score, Rule(self.study.overload, tuple(clauses), reading))
        return None if best is None or not best[1].clauses else best[1]

    def _refuting(self, rule: Rule, seed: int) -> list[Call]:
        """Calls that refute the rule, as many as the next one learns from."""
        refuting: list[Call] = []
        for call in self._made_to_refute(seed):
            self.study.refutations_tried += 1
            if contradicted(rule, call, self.policy):
                refuting.append(call)
                if len(refuting) == LEARNED:
                    break
        return refuting

    def _made_to_refute(self, seed: int) -> Iterator[Call]:
        if self.budget.triples or self.budget.random:
            yield from (*self.waiting, *self.study.sweep.exempt.get(self.study.overload, ()))
        if self.design is None:
            return
        if self._designed is None:
            self._designed = list(triples(self.design, self.budget.triples))
            self._designed += unusual_calls(self.design) if self.budget.triples else ()
        yield from self._designed
        yield from random_calls(self.design, self.budget.random, seed)

    def _is_witnessed(self, rule: Rule, judged: Sequence[Observation]) -> bool:
        """Look for a witness of every condition. A condition without one is barred, and calls that show why are learned
        from; True if there is a witness for each."""
        exempt = [replace(_bound(o, rule.reading), exempt=True) for o in self.exempt]
        observed = [*(_bound(o, rule.reading) for o in judged), *exempt]
        self.study.witnesses, complete = [], True
        for clause in rule.clauses:
            for condition in clause.when:
                found = find_witness(rule, clause, condition, observed, self.design, self.policy)
                if isinstance(found, Witness):
                    self.study.witnesses.append(found)
                    continue
                complete = False
                self._exempt(found[:LEARNED])
                if not found:
                    self.barred.setdefault((clause.inputs, clause.outputs), set()).add(condition)
        return complete

    def _sound_part(
        self, rule: Rule, judged: Sequence[Observation], seed: int, survived: bool
    ) -> Rule | None:
        """The clauses that no call contradicts and whose conditions have witnesses; the calls for which more holds are
        named as unexplained. Unless the whole rule `survived` calls made to refute it, its clauses are tested now."""
        study = self.study
        self._is_witnessed(rule, judged)
        witnessed = {(w.clause, w.condition) for w in study.witnesses}
        observed = [_bound(o, rule.reading) for o in (*judged, *self.exempt)]
        kept = [
            clause
            for clause in rule.clauses
            if all(is_sound(replace(rule, clauses=(clause,)), o) for o in observed)
            and not _ignores_what_matters(clause, judged)
            and all((clause, condition) in witnessed for condition in clause.when)
        ]
        part = replace(rule, clauses=tuple(kept))
        if kept and not survived:
            part = self._unrefuted(part, seed)
        part = self._shortened(replace(part, clauses=merged(part.clauses)), judged)
        study.witnesses = [w for w in study.witnesses if w.clause in part.single_clauses]
        study.unexplained = [o.call for o in judged if not agrees(part, _bound(o, rule.reading))]
        return _as_far_as_seen(part, judged) if part.clauses else None

    def _unrefuted(self, rule: Rule, seed: int) -> Rule:
        """The rule without the clauses that calls made to refute it contradict."""
        for call in self._made_to_refute(seed):
            self.study.refutations_tried += 1
            if wrong := contradicted(rule, call, self.policy):
                rule = replace(rule, clauses=tuple(c for c in rule.clauses if c not in wrong))
                if not rule.clauses:
                    break
        return rule

    def _shortened(self, rule: Rule, judged: Sequence[Observation]) -> Rule:
        """The rule without the clauses beyond the budget that yield fewest rows, those in calls with the examples'
        numbers of dims before others."""
        if len(rule.clauses) <= self.budget.clauses:
            return rule
        usual = {_ranks(call) for call in self.design.examples} if self.design is not None else set()

        def use(clause: Clause) -> tuple[int, int]:
            single = replace(rule, clauses=(clause,))
            yields = [(o, len(yielded(single, _bound(o, rule.reading)))) for o in judged]
            return sum(n for o, n in yields if _ranks(o.call) in usual), sum(n for _, n in yields)

        kept = sorted(rule.clauses, key=use, reverse=True)[: self.budget.clauses]
        return replace(rule, clauses=tuple(c for c in rule.clauses if c in kept))


def _ignores_what_matters(clause: Clause, judged: Sequence[Observation]) -> bool:
    """True if a clause says that the values of an input do not matter, but they do, if only by a rounding error."""
    if any(term.kind == "P" for term in clause.outputs):
        return False
    for o in judged:
        names = [a.name for a in o.call.schema.arguments if "Tensor" in str(a.type)] if o.call.schema else []
        partial = [name for name, term in zip(names, clause.inputs, strict=False) if term.kind == "P"]
        if any(o.matters.get(name, False) for name in partial):
            return True
    return False


def _ranks(call: Call) -> tuple[int, ...]:
    return tuple(t.ndim for t in call.tensors)


def _spurious(judged: Sequence[Observation]) -> list[Observation]:
    """Calls that hold more rows than their operator does, because of their sizes or numbers: the values of an input do
    not matter that matter in most calls (argmax over a dim of size 1, a sum with 0 times the other operand), or the
    only output is the input again, while other calls change it (a sum over a dim of size 1, a transposed vector). A
    rule need not explain them, but may say nothing wrong about them."""
    usual = {
        name: 2 * sum(o.matters[name] for o in having) > len(having)
        for name in {name for o in judged for name in o.matters}
        if (having := [o for o in judged if name in o.matters])
    }
    changing = any(not o.keeps_values for o in judged)
    return [
        o
        for o in judged
        if any(matters != usual[name] for name, matters in o.matters.items()) or (changing and o.keeps_values)
    ]


def _shapes(results: Sequence[Any]) -> list[Any]:
    return [tuple(r.shape) if isinstance(r, Tensor) else None for r in results]


def _undefined(results: Sequence[Any]) -> float:
    tensors = [r.reshape(-1).isnan() for r in results if isinstance(r, Tensor)]
    return float(torch.cat(tensors).float().mean()) if tensors else 0.0


def _what_matters(call: Call, results: Sequence[Any]) -> dict[str, bool]:
    """For each argument with tensors whether the outputs depend on their values."""
    matters = dict.fromkeys(call.tensor_names, False)
    for i, name in enumerate(call.tensor_names):
        other = [t.clone() for t in call.tensors]
        other[i] = _other_values(other[i])
        try:
            matters[name] |= any(
                isinstance(new, Tensor) and not torch.equal(new.nan_to_num(), old.nan_to_num())
                for new, old in zip(call.run(other), results, strict=True)
            )
        except Exception:
            matters[name] = True  # values that it refuses matter to it
    return matters


def _other_values(tensor: Tensor) -> Tensor:
    """The tensor with its values in another order, and others than before where they are real numbers."""
    # Few operators are implemented for floats of 8 bits.
    flat = tensor.to(torch.float32) if tensor.dtype.itemsize == 1 and tensor.is_floating_point() else tensor
    flat = flat.reshape(-1).flip(0).reshape(tensor.shape)
    if tensor.dtype == torch.bool:
        return ~flat
    if tensor.is_floating_point() or tensor.is_complex():
        return (flat * 0.75 + 0.125).to(tensor.dtype)
    return flat


def _keeps_values(call: Call, results: Sequence[Any]) -> bool:
    """True if the only output holds the first input's values in the same order."""
    if not call.tensors or len(results) != 1 or not isinstance(results[0], Tensor):
        return False
    first, output = call.tensors[0], results[0]
    return (
        first.dtype == output.dtype
        and first.numel() == output.numel()
        and torch.equal(first.reshape(-1), output.reshape(-1))
    )


def _as_far_as_seen(rule: Rule, judged: Sequence[Observation]) -> Rule:
    """The rule, for calls like those that were seen: an argument that was the same in all of them may decide everything
    if it is a word, None, or a list that every call must give (`expand1` in bilinear's `_trilinear`)."""
    seen: dict[str, set[Any]] = {}
    for o in judged:
        for name, value in _bound(o, rule.reading).bound.scope.arguments.items():
            seen.setdefault(name, set()).add(value)
    call = judged[0].call
    conditions = [
        text
        for argument in (call.schema.arguments if call.schema else ())
        if "Tensor" not in str(argument.type)
        and len(values := seen.get(argument.name, ())) == 1
        and (text := _only_value(argument, next(iter(values)), facts(call.op)))
    ]
    return replace(rule, clauses=tuple(replace(c, when=(*c.when, *conditions)) for c in rule.clauses))


_PLAIN = ("int", "float", "number", "str")


def _only_value(argument: Any, value: Any, known: Facts) -> str | None:
    """The condition that an argument has the only value that was seen; None where others cannot matter."""
    kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
    if isinstance(value, str):
        return f"{argument.name} == {value!r}"
    if value is None and kind in _PLAIN and argument.name not in known.dims:
        return f"{argument.name} is None"
    required = not argument.has_default_value() and argument.name not in (*known.windows, *known.dims)
    return f"{argument.name} == {value}" if isinstance(value, tuple) and required else None


def _readings(building: Sequence[Observation]) -> Iterator[Reading]:
    """Ways of reading the arguments that can make a difference for these calls, the plain one first."""
    names = {name for j in building for name, _ in j.call.leaves()}
    named = any(not names.isdisjoint(facts(j.call.op).dims) for j in building)
    operands = any(len(j.call.tensors) > 1 or _is_expanded(j) for j in building)
    for broadcast in (False, True) if operands else (False,):
        for dims_of in ("input", "output") if named else ("input",):
            for no_dims in ("all", "none") if named else ("all",):
                yield Reading(dims_of, no_dims, broadcast)


def _is_expanded(judged: Observation) -> bool:
    """True if the output has the input's dims, repeated."""
    shapes = [tuple(t.shape) for t in judged.call.tensors] + judged.outputs[:1]
    if len(shapes) < 2 or shapes[-1] is None or shapes[0] == shapes[-1]:
        return False
    sizes = zip(reversed(shapes[0]), reversed(shapes[-1]), strict=False)
    return len(shapes[0]) <= len(shapes[-1]) and all(size in (1, out) for size, out in sizes)


def _bound(judged: Observation, reading: Reading) -> BoundObservation:
    return BoundObservation.of(judged.call, judged.found, reading, judged.outputs)


def _with_evidence(study: Study) -> Rule:
    assert study.rule is not None
    generators = sorted({g for o in study.observations for e in o.found.evidence.values() for g in e})
    evidence = {
        "torch": torch.__version__.split("+")[0],
        "calls": study.built_from,
        "held_out": study.validated_on,
        "refutations_tried": study.refutations_tried,
        "experiments": sum(o.found.experiments for o in study.observations),
        "generators": generators,
    }
    if study.unexplained:
        evidence["unexplained"] = len(study.unexplained)
    if study.witnesses:
        evidence["witnesses"] = [w.to_document() for w in study.witnesses]
    front = study.op if study.op.startswith("torch.") and study.op != study.overload else None
    return replace(study.rule, evidence=evidence, front=front)
