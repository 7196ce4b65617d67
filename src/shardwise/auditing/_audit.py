"""The audit: DTensor's own rules validated by experiment.

For a few calls of every overload, DTensor's claims are read, discovery finds the rows that hold, and the two are
compared; for calls designed to refute them, the claims alone are tested. A claim that experiments do not confirm is a
suspicion; it becomes a finding only with a script in which DTensor itself computes the wrong number. A row that holds
and for which DTensor communicates is missing.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.distributed.tensor.placement_types import Placement

from ..calls import Call, diverse_calls, overload, with_negative_dims
from ..dtensor import Decision, NoDecision, decide, decisions, registration, traced_once
from ..errors import UsageError, require
from ..experiments import (
    Counterexample,
    Crash,
    ExperimentPolicy,
    ExperimentSuite,
    Found,
    Unjudgeable,
    check,
    limited,
    refuted,
)
from ..files import path_of
from ..placements import Row, Shards, fewest_shards, is_partial, is_replicate, is_shard, placement_text
from ..progress import Progress, silent
from ..rules import book_rows
from ._designed import designed_calls, optional_tensors
from ._findings import Audit, CallFindings, Missing, Unsupported, Wrong
from ._kept import Kept
from ._reproduce import Raised, Reproduction, reproduce, reproduce_again

# CPU seconds for the calls of one overload, and for its designed ones together and one by one. Rows of one call are
# begun within the first: where DTensor decides through decompositions, each size of the call takes seconds.
_SECONDS = 120
_ALONE_SECONDS = 300

# CPU seconds after which no designed call of an overload is begun, and for reading what DTensor claims of one of them.
_DESIGNED_SECONDS = 40.0
_CLAIMS_SECONDS = 10
_RANKS = 2
_BLOCKS = 2  # of strided shards

# Number of input placements beyond which discovery tests one kind of partial only.
_MANY = 1200

# Shapes on which the cost of a missing row is counted, by number of dims; dims of size 1 stay so.
_TYPICAL = ((), (4096,), (2048, 4096), (8, 2048, 4096), (8, 32, 2048, 128))
_TYPICAL_RANKS = 8


# A function that returns the findings of one call.
Judge = Callable[..., CallFindings]


def audit(
    pattern: str = "*",
    *,
    jobs: int = 1,
    samples: int = 4,
    designed: int = 24,
    keep: str | Path | None = None,
    beside: Audit | None = None,
    progress: Progress = silent,
) -> Audit:
    """Compare DTensor's rules with experiment, for the operators whose name matches.

    `pattern` is the name of an OpInfo (`linalg.vector_norm`) or of an overload (`aten.mm.default`, `mm`), with
    `*`. Of every overload up to `samples` calls of torch's OpInfo samples are audited, and up to `designed` calls that
    are made from them to refute what DTensor claims. Every overload is audited in a process of its own; what is found
    is kept in the file `keep`, with which an audit that was stopped goes on. Of an audit of another torch, `beside`,
    the scripts of these overloads are run again.

    >>> found = audit("aten.linalg_vector_norm.default")                    # doctest: +SKIP
    >>> [str(wrong.row) for wrong in found.wrong]                           # doctest: +SKIP
    ['P(max) -> P(max)', 'P(min) -> P(min)']
    """
    require(pattern, str, "pattern", "the name of an OpInfo or overload, with *, such as linalg.*")
    for name, count, least in (("jobs", jobs, 1), ("samples", samples, 1), ("designed", designed, 0)):
        require(count, int, name, f"a whole number, at least {least}")
        if count < least:
            raise UsageError(f"{name} is {count}: give at least {least}")
    found_calls = diverse_calls(pattern, samples, partial(progress, "collecting calls"))
    calls = [with_negative_dims(of_op) for of_op in found_calls.values()]
    if not calls:
        raise UsageError(f"no OpInfo sample reaches an operator that matches {pattern!r}: nothing to audit")
    version = torch.__version__.split("+")[0]
    kept = Kept(None if keep is None else path_of(keep), version, samples, designed)
    left = [of_op for of_op in calls if str(of_op[0].op) not in kept.found]
    with _one_thread(), ThreadPoolExecutor(jobs) as pool:
        _warm_up()
        waiting = {pool.submit(_overload, of_op, designed): str(of_op[0].op) for of_op in left}
        for done, future in enumerate(as_completed(waiting), 1 + len(calls) - len(left)):
            kept.keep(waiting[future], future.result())
            progress("auditing", done, len(calls))
        names = [str(of_op[0].op) for of_op in calls]
        if beside is not None:
            for op in names:
                kept.keep(op, _again([w for w in beside.wrong if w.op == op], kept.found[op]))
    return Audit.of(version, [findings for op in names for findings in kept.found[op]])


def _again(claims: Sequence[Wrong], found: Sequence[CallFindings]) -> list[CallFindings]:
    """Of what is wrong in another torch and was not found here, that which its scripts show here as well."""
    known = {wrong.row for findings in found for wrong in findings.wrong}
    shown = []
    for wrong in claims:
        outcome = None
        if wrong.row not in known:
            outcome = limited(partial(reproduce_again, wrong.script), _ALONE_SECONDS)
        if isinstance(outcome, Reproduction):
            kind = registration(overload(wrong.op))
            here = replace(wrong, kind=kind, script=outcome.script, output=outcome.output, designed=True)
            shown.append(CallFindings(wrong.op, wrong.call, kind, "rows", wrong=[here], designed=True))
    return shown


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within, torch computes in one thread: children forked from a process with several threads would hang."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _warm_up() -> None:
    """Load what is loaded at first use, so that forked children need not load it again."""
    values = torch.ones(2, 2)
    for op, args in (
        (torch.ops.aten.any.default, (values,)),
        (torch.ops.aten.huber_loss.default, (values, values)),
    ):
        audit_call(Call(op, args))


def _overload(calls: Sequence[Call], designed: int) -> list[CallFindings]:
    """The findings about an overload, from known calls and from those designed to refute what DTensor claims."""
    schema = calls[0].schema
    if schema is not None and any(argument.is_out for argument in schema.arguments):
        # DTensor counts them as inputs, experiments as outputs: the overload that returns its results is audited.
        return [_verdict(call, "writes to out=") for call in calls]
    known = isolated(calls)
    if not designed or registration(calls[0].op) == "none":
        return known
    wrong = frozenset(w.row for findings in known for w in findings.wrong)
    return [*known, *isolated_designs(calls, designed, partial(audit_claims, known=wrong))]


def isolated(calls: Sequence[Call], judge: Judge | None = None) -> list[CallFindings]:
    """The findings about an overload from a process of its own; if that crashes, from one per call. `judge` is
    `audit_call`, or a replacement."""
    judge = judge or audit_call
    outcome = limited(partial(_each, calls, judge), _SECONDS)
    if not isinstance(outcome, Crash):
        return outcome
    if outcome in ("SIGXCPU", "timeout"):
        return [_verdict(call, "timeout") for call in calls]
    if len(calls) > 1:
        return [findings for call in calls for findings in isolated([call], judge)]
    # Pieces that do not fit together crash some kernels; those that DTensor claims do fit.
    claims = limited(partial(_each, calls, partial(judge, claims_only=True)), _SECONDS)
    return [_verdict(calls[0], f"crashed ({outcome})")] if isinstance(claims, Crash) else claims


def isolated_designs(calls: Sequence[Call], most: int, judge: Judge) -> list[CallFindings]:
    """The findings of up to so many designed calls from a process of its own; if one crashes it or takes too long, from
    one per call."""
    given = limited(partial(optional_tensors, calls), _SECONDS)
    design = partial(designed_calls, calls, most, [] if isinstance(given, Crash) else given)
    outcome = limited(partial(_designed, calls, design, judge), _ALONE_SECONDS)
    if not isinstance(outcome, Crash):
        return outcome
    found, crashes = [], {str(outcome): None}
    for number in range(most):
        outcome = limited(partial(_designed, calls, design, judge, number), _ALONE_SECONDS)
        if isinstance(outcome, Crash):
            crashes[str(outcome)] = None
        else:
            found += outcome
    return [*found, *(_verdict(calls[0], f"designed calls: {crash}") for crash in crashes)]


def _verdict(call: Call, verdict: str) -> CallFindings:
    return CallFindings(str(call.op), str(call), registration(call.op), verdict)


def _each(calls: Sequence[Call], judge: Judge) -> list[CallFindings]:
    """The findings of each. An error of one call (a dtype that numpy lacks, say) is its verdict."""
    findings = []
    for call in calls:
        try:
            findings.append(judge(call))
        except Exception as error:
            findings.append(_verdict(call, f"cannot run: {type(error).__name__}: {error}"))
    return findings


def _designed(
    known: Sequence[Call], design: Callable[[], list[Call]], judge: Judge, number: int | None = None
) -> list[CallFindings]:
    """The findings of designed calls, or of the one with this number."""
    ends = time.process_time() + _DESIGNED_SECONDS
    try:
        calls = design()
    except UsageError as error:
        return [_verdict(known[0], f"designed calls: {error}")]
    found = []
    for call in calls if number is None else calls[number : number + 1]:
        if time.process_time() > ends:
            break
        found += _each([call], judge)
    return found


@traced_once()
def audit_claims(call: Call, *, known: frozenset[str] = frozenset()) -> CallFindings:
    """What DTensor claims for one call and experiments refute, in this process, without the rows that are `known`."""
    findings = _verdict(call, "rows")
    findings.designed = True
    try:
        claimed = list(_claims_of(call))
    except NoDecision:
        return findings  # what it has no strategy for, its known calls show
    claimed = [row for row in (*claimed, *_strided_claims(call, claimed)) if str(row) not in known]
    findings.claimed = len(claimed)
    ends = time.process_time() + _SECONDS
    for row in _suspected(call, claimed):
        if time.process_time() > ends:
            break
        suite = ExperimentSuite(call, (call.name,))
        _judge_claim(findings, suite, None, call, row, _sizings(suite))
    return findings


def _claims_of(call: Call) -> Iterator[Row]:
    """The rows that DTensor claims of a call, as far as they can be read in the time there is."""
    ends = time.process_time() + _CLAIMS_SECONDS
    for decision in decisions(call, _RANKS):
        if decision.inputs == decision.requested and not decision.row.is_replicated:
            yield decision.row
        if time.process_time() > ends:
            break


def _strided_claims(call: Call, claimed: Sequence[Row]) -> list[Row]:
    """What DTensor claims of strided shards, where it claims plain ones."""
    found = []
    for row in claimed:
        strided = row.opened().with_kind(_BLOCKS)
        if strided == row:
            continue
        try:
            decision = decide(call, strided.inputs, _RANKS)
        except NoDecision:
            continue
        if decision.inputs == strided.inputs:
            found.append(decision.row)
    return found


def _suspected(call: Call, claimed: Sequence[Row]) -> list[Row]:
    """The claimed rows that a few experiments refute."""
    suspected = []
    for row in claimed:
        try:
            suspected += refuted(call, [row])
        except UsageError:
            continue  # it has a placement that experiments do not support, such as a masked partial
    return suspected


@traced_once()
def audit_call(call: Call, *, claims_only: bool = False) -> CallFindings:
    """The findings of one call, in this process. `claims_only` tries no row but those that DTensor claims."""
    findings = _verdict(call, "claims only" if claims_only else "")
    suite, found = None, None
    try:
        suite = ExperimentSuite(call, (call.name,))
        if not claims_only:
            found = _policy(call).discover(call.op, *call.args, **call.kwargs)
            findings.verdict = found.verdict
    except Unjudgeable as why:
        findings.verdict = why.verdict
    except UsageError as why:
        findings.verdict = f"cannot run: {why}"
        return findings
    sizings = _sizings(suite) if suite is not None else [call]
    valid = found.rows if found is not None else []
    try:
        taken = list(decisions(sizings[0], _RANKS, [row.inputs for row in valid]))
    except NoDecision as why:
        rows = tuple(row.text for row in valid)
        findings.unsupported.append(Unsupported(findings.op, findings.call, str(why), why.missing, rows))
        return findings
    claimed = [decision.row for decision in taken if decision.inputs == decision.requested]
    claimed = [row for row in claimed if not row.is_replicated]
    findings.claimed, findings.valid = len(claimed), len(valid)
    if suite is not None:
        for row in (*claimed, *_strided_claims(sizings[0], claimed)):
            _judge_claim(findings, suite, found, call, row, sizings)
    refuted = {w.row for w in findings.wrong}
    by_inputs = {decision.requested: decision for decision in taken}
    for row in valid:
        decision = by_inputs.get(row.inputs)
        moves = decision.moves if decision is not None else _gathered(row.inputs)
        if moves and str(row) not in refuted:
            findings.missing.append(_missing(findings, row, moves, sizings[0], decision))
    return findings


def _policy(call: Call) -> ExperimentPolicy:
    """All partials where that is affordable, else sums alone; other claims are then checked one by one."""
    policy = ExperimentPolicy()
    options = [1 + sum(size > 1 for size in t.shape) + len(policy.partials) for t in call.tensors]
    return policy if math.prod(options) <= _MANY else replace(policy, partials=("sum",))


# -- wrong


def _judge_claim(
    findings: CallFindings,
    suite: ExperimentSuite,
    found: Found | None,
    call: Call,
    row: Row,
    sizings: Sequence[Call],
) -> None:
    """Suspect a claim that experiments do not confirm for these sizes, and try to reproduce a wrong result."""
    if found is not None and row.inputs in found.candidates:
        held, refuted = _held_for(found, row), found.counterexample(row)
    else:
        held, refuted = _checked(call, row)
    if held in ("any", "nonempty"):
        return
    if held == "even":
        # Right for equal shards: wrong only where DTensor claims it for others as well.
        sizings = [s for s in sizings if _cut(s, row) == "uneven"]
    elif refuted is None:
        # Not refuted, only not confirmed, as where pieces do not fit together: those of size 1 broadcast.
        sizings = sorted(sizings, key=lambda sized: not _has_single_pieces(sized, row))
    claimed: Iterator[Call] = (sized for sized in sizings if _claims(sized, row))
    if refuted is None:
        claimed = itertools.islice(claimed, 2)  # a few runs of DTensor itself decide
    first = next(claimed, None)
    if first is None:
        return
    outcome = reproduce(suite, row, itertools.chain([first], claimed), refuted)
    if isinstance(outcome, Reproduction):
        findings.wrong.append(
            Wrong(
                findings.op,
                findings.call,
                findings.kind,
                str(row),
                outcome.script,
                outcome.output,
                "uneven shards" if held == "even" else "",
                findings.designed,
                _right(found.rows if found is not None else book_rows(call) or [], row),
            )
        )
    elif isinstance(outcome, Raised):
        reason = f"claims {row}, but running it raises: {outcome.reason}"
        confirmed = _same_inputs(found.rows if found is not None else [], row)
        findings.unsupported.append(Unsupported(findings.op, findings.call, reason, False, confirmed))
    else:
        findings.cleared.append(str(row))


def _right(valid: Sequence[Row], claimed: Row) -> tuple[str, ...]:
    """The rows with the same inputs as a wrong one; if there are none, all that are valid."""
    return _same_inputs(valid, claimed) or tuple(row.text for row in valid)


def _same_inputs(valid: Sequence[Row], claimed: Row) -> tuple[str, ...]:
    return tuple(row.text for row in valid if row.inputs == claimed.inputs)


def _held_for(found: Found, row: Row) -> str | None:
    """The shard sizes for which experiments confirm a row of the overload; None if they do not."""
    candidate = found.candidates[row.inputs]
    fewest: Shards = "any"
    outputs = row.outputs[: len(candidate.claims)]
    for claims, placement in zip(candidate.claims, outputs, strict=False):
        if claims is None or placement is None:
            continue
        claim = claims.get(placement)
        if claim is None:
            return None
        shards = claim.shards
        if shards is None and claim.alive and "uneven" in claim.failed:
            shards = "even"  # not met with even shards, but failed with none
        if shards is None:
            return None
        fewest = fewest_shards((fewest, shards))
    return fewest


def _checked(call: Call, row: Row) -> tuple[str | None, Counterexample | None]:
    """The same for a row that discovery did not try, and what refuted it."""
    try:
        verdict = check(call.op, row, *call.args, **call.kwargs)
    except UsageError:
        return None, None  # it has a placement that experiments do not support, such as a masked partial
    return verdict.shards, verdict.counterexample


def _claims(call: Call, row: Row) -> bool:
    """True if DTensor takes the row's inputs as they are for a call of these sizes."""
    try:
        decision = decide(call, row.inputs, _RANKS)
    except NoDecision:
        return False
    return decision.inputs == row.inputs and decision.outputs == row.outputs


def _sizings(suite: ExperimentSuite) -> list[Call]:
    """The call at sizes that cut evenly on two ranks, then unevenly, then with one of each sharded dim a rank."""
    resizer = suite.resizer
    sizings = [*resizer.sizings(_RANKS, "even"), *resizer.sizings(_RANKS, "uneven")]
    thin = [resizer.resized({size: _RANKS}) for size in resizer.classes]
    sizings += [sized for sized in thin if sized is not None]
    sizings.append(suite.call)
    return list({sized.shapes: sized for sized in reversed(sizings)}.values())[::-1]


def _has_single_pieces(sized: Call, row: Row) -> bool:
    """Whether some dim is cut into pieces of size 1."""
    shapes = zip(sized.shapes, row.inputs, strict=True)
    return any(is_shard(p) and shape[p.dim] == _RANKS for shape, p in shapes)


def _cut(sized: Call, row: Row) -> str:
    sizes = [
        (shape[p.dim], _RANKS * getattr(p, "split_factor", 1))
        for shape, p in zip(sized.shapes, row.inputs, strict=True)
        if is_shard(p)
    ]
    return "even" if all(size % pieces == 0 for size, pieces in sizes) else "uneven"


# -- missing


def _gathered(inputs: Sequence[Placement]) -> tuple[tuple[int, Placement, Placement], ...]:
    """What a user has to do where DTensor raises: replicate everything."""
    replicate = torch.distributed.tensor.Replicate()
    return tuple((i, p, replicate) for i, p in enumerate(inputs) if not is_replicate(p))


def _missing(
    findings: CallFindings,
    row: Row,
    moves: Sequence[tuple[int, Placement, Placement]],
    sized: Call,
    decision: Decision | None,
) -> Missing:
    cost = 0
    for index, before, after in moves:
        shape = typical_shape(sized.shapes[index])
        cost += moved_bytes(shape, sized.tensors[index].dtype.itemsize, before, after)
    instead = ", ".join(f"{placement_text(b)} to {placement_text(a)}" for _, b, a in moves)
    return Missing(
        findings.op,
        findings.call,
        findings.kind,
        str(row),
        row.shards,
        row.local,
        cost,
        instead if decision is not None else f"raises; replicating is {instead}",
        any(is_partial(p) for p in row.inputs),
    )


def typical_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape of the same rank as it might occur in training."""
    sizes = (
        _TYPICAL[len(shape)] if len(shape) < len(_TYPICAL) else (*_TYPICAL[-1][:1], *[16] * (len(shape) - 1))
    )
    return tuple(1 if size == 1 else typical for size, typical in zip(shape, sizes, strict=True))


def moved_bytes(shape: Sequence[int], itemsize: int, before: Placement, after: Placement) -> int:
    """Bytes that each of eight ranks sends to take a tensor from one placement to another."""
    whole, ranks = math.prod(shape) * itemsize, _TYPICAL_RANKS
    if is_shard(before) and is_shard(after):
        return whole * (ranks - 1) // ranks**2
    rounds = 2 if is_partial(before) and not is_shard(after) else 1
    return rounds * whole * (ranks - 1) // ranks
