"""The audit: DTensor's own rules held against experiment.

For every overload a few calls: what DTensor claims is asked, what holds is found by discovery, and the two are
compared. A claim that experiments do not confirm is a suspicion; it becomes a finding only with a script in which
DTensor itself computes the wrong number. A row that holds and for which DTensor communicates is missing.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Placement

from ..discover import Call, Crash, Found, Laboratory, Sized, Unjudgeable, check, discover, example_sizes, run_isolated
from ..errors import UsageError
from ..placements import Row, is_partial, is_replicate, is_shard, placement_text
from ._calls import OverloadCall, telling_calls
from ._findings import Audit, Missing, Unsupported, Wrong
from ._read import Answer, ask, answers, registration
from ._read import Unsupported as NoAnswer
from ._reproduce import Raised, Reproduction, reproduce

_TIMEOUT = 180.0
_RANKS = 2

# Shapes on which the cost of a missing row is counted, by number of dims; dims of size 1 stay so.
_TYPICAL = ((), (4096,), (2048, 4096), (8, 2048, 4096), (8, 32, 2048, 128))
_TYPICAL_RANKS = 8


@dataclass
class CallFindings:
    """What one call of an overload showed."""

    op: str
    call: str
    kind: str
    verdict: str
    claimed: int = 0
    valid: int = 0
    wrong: list[Wrong] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)


def audit(
    pattern: str = "*",
    *,
    jobs: int = 1,
    samples: int = 8,
    progress: Callable[[str, int, int], None] | None = None,
) -> Audit:
    """Compare DTensor's rules with experiment, for the operators whose name matches.

    `pattern` is the name of an OpInfo (`linalg.vector_norm`) or of an overload (`aten.mm.default`, `mm`), with
    `*`. Every call is audited in a process of its own; `progress` is told (stage, done, total).

    >>> found = audit("aten.linalg_vector_norm.default")                    # doctest: +SKIP
    >>> [str(wrong.row) for wrong in found.wrong]                           # doctest: +SKIP
    ['P(max) -> P(max)', 'P(min) -> P(min)']
    """
    torch.set_num_threads(1)
    tell = progress or (lambda stage, done, total: None)
    calls = telling_calls(pattern, samples, partial(tell, "collecting calls"))
    flat = [call for of_op in calls.values() for call in of_op]
    if not flat:
        raise UsageError(f"no operator matches {pattern!r}: use an OpInfo name or an overload, as in aten.mm*")
    found: list[CallFindings | None] = [None] * len(flat)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(_isolated, call): i for i, call in enumerate(flat)}
        for done, future in enumerate(as_completed(waiting)):
            found[waiting[future]] = future.result()
            tell("auditing", done + 1, len(flat))
    return _merge([f for f in found if f is not None])


def _isolated(call: OverloadCall) -> CallFindings:
    outcome = run_isolated(partial(audit_call, call), _TIMEOUT)
    if isinstance(outcome, Crash):
        verdict = "timeout" if outcome == "timeout" else f"crashed ({outcome})"
        return CallFindings(str(call.op), str(call), registration(call.op), verdict)
    return outcome


def audit_call(call: OverloadCall) -> CallFindings:
    """The findings of one call, in this process."""
    findings = CallFindings(str(call.op), str(call), registration(call.op), "")
    template = Call.of(call.op, call.args, call.kwargs)
    try:
        laboratory = Laboratory(template, (template.name,))
        found = discover(call.op, *call.args, **call.kwargs)
        findings.verdict = found.verdict
    except Unjudgeable as why:
        findings.verdict = why.verdict
        found = None
    except UsageError as why:
        findings.verdict = f"cannot run: {why}"
        return findings
    sizings = [example_sizes(template)] if found is None else _sizings(laboratory)
    args, kwargs = _meta_arguments(sizings[0])
    try:
        asked = [row.inputs for row in found.rows] if found is not None else []
        answered = list(answers(call.op, args, kwargs, _RANKS, asked))
    except NoAnswer as why:
        rows = tuple(str(row) for row in found.rows) if found is not None else ()
        findings.unsupported.append(Unsupported(findings.op, findings.call, str(why), why.missing, rows))
        return findings
    claimed = [answer.row for answer in answered if answer.inputs == answer.asked]
    findings.claimed = len(claimed)
    if found is None:
        return findings
    findings.valid = len(found.rows)
    for row in claimed:
        _judge_claim(findings, laboratory, found, call, row, sizings)
    refuted = {w.row for w in findings.wrong}
    by_inputs = {answer.asked: answer for answer in answered}
    for row in found.rows:
        answer = by_inputs.get(row.inputs)
        moves = answer.moves if answer is not None else _gathered(row.inputs)
        if moves and str(row) not in refuted:
            findings.missing.append(_missing(findings, row, moves, sizings[0], answer))
    return findings


# -- wrong


def _judge_claim(
    findings: CallFindings,
    laboratory: Laboratory,
    found: Found,
    call: OverloadCall,
    row: Row,
    sizings: Sequence[Sized],
) -> None:
    """Suspect a claim that experiments do not confirm for the sizes at hand, and try to convict it."""
    held = _held_for(found, row)
    if held in ("any", "nonempty"):
        return
    if held == "even":
        # Right for equal shards: wrong only where DTensor claims it for others as well.
        sizings = [s for s in sizings if _cut(s, row) == "uneven" and _claims(call.op, s, row)]
    else:
        sizings = [s for s in sizings if _claims(call.op, s, row)]
    if not sizings:
        return
    outcome = reproduce(laboratory, row, sizings, found.counterexample(row) if held is None else None)
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
            )
        )
    elif isinstance(outcome, Raised):
        reason = f"claims {row}, but the local call raises: {outcome.reason}"
        findings.unsupported.append(Unsupported(findings.op, findings.call, reason, False, (str(row),)))
    else:
        findings.cleared.append(str(row))


def _held_for(found: Found, row: Row) -> str | None:
    """The shard sizes for which experiments confirm a row of the overload; None if they do not."""
    trial = found.trials.get(row.inputs)
    if trial is None:
        return None
    generality = {"even": 0, "nonempty": 1, "any": 2}
    worst = "any"
    outputs = row.outputs[: len(trial.claims)]
    for claims, placement in zip(trial.claims, outputs, strict=False):
        if claims is None or placement is None:
            continue
        claim = claims.get(placement)
        if claim is None or claim.shards is None:
            return None
        worst = min(worst, claim.shards, key=generality.__getitem__)
    return worst


def _claims(op: torch._ops.OpOverload, sized: Sized, row: Row) -> bool:
    """True if DTensor takes the row's inputs as they are for a call of these sizes."""
    args, kwargs = _meta_arguments(sized)
    try:
        answer = ask(op, args, kwargs, row.inputs, _RANKS)
    except NoAnswer:
        return False
    return answer.inputs == row.inputs and answer.outputs == row.outputs


def _sizings(laboratory: Laboratory) -> list[Sized]:
    """The call at sizes that cut evenly on two ranks, then unevenly, then with one of each sharded dim a rank."""
    resizer = laboratory.resizer
    sizings = [*resizer.sizings(_RANKS, "even"), *resizer.sizings(_RANKS, "uneven")]
    thin = [resizer.resized({size: _RANKS}) for size in resizer.classes]
    sizings += [sized for sized in thin if sized is not None]
    sizings.append(example_sizes(laboratory.call))
    return list({sized.shapes: sized for sized in reversed(sizings)}.values())[::-1]


def _cut(sized: Sized, row: Row) -> str:
    sizes = [shape[p.dim] for shape, p in zip(sized.shapes, row.inputs, strict=True) if is_shard(p)]
    return "even" if all(size % _RANKS == 0 for size in sizes) else "uneven"


def _meta_arguments(sized: Sized) -> tuple[list[Any], dict[str, Any]]:
    """The call's arguments with tensors that have shapes and no values."""
    tensors = [
        torch.empty(shape, dtype=t.dtype, device="meta")
        for shape, t in zip(sized.shapes, sized.call.tensors, strict=True)
    ]
    return sized.call.arguments(tensors)


# -- missing


def _gathered(inputs: Sequence[Placement]) -> tuple[tuple[int, Placement, Placement], ...]:
    """What a user has to do where DTensor raises: replicate everything."""
    replicate = torch.distributed.tensor.Replicate()
    return tuple((i, p, replicate) for i, p in enumerate(inputs) if not is_replicate(p))


def _missing(
    findings: CallFindings,
    row: Row,
    moves: Sequence[tuple[int, Placement, Placement]],
    sized: Sized,
    answer: Answer | None,
) -> Missing:
    cost = 0
    for index, before, after in moves:
        shape = typical_shape(sized.shapes[index])
        cost += moved_bytes(shape, sized.call.tensors[index].dtype.itemsize, before, after)
    instead = ", ".join(f"{placement_text(b)} to {placement_text(a)}" for _, b, a in moves)
    return Missing(
        findings.op,
        findings.call,
        findings.kind,
        str(row),
        row.shards,
        cost,
        instead if answer is not None else f"raises; replicating is {instead}",
        any(is_partial(p) for p in row.inputs),
    )


def typical_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape of the same rank as it might occur in training."""
    sizes = _TYPICAL[len(shape)] if len(shape) < len(_TYPICAL) else (*_TYPICAL[-1][:1], *[16] * (len(shape) - 1))
    return tuple(1 if size == 1 else typical for size, typical in zip(shape, sizes, strict=True))


def moved_bytes(shape: Sequence[int], itemsize: int, before: Placement, after: Placement) -> int:
    """Bytes that each of eight ranks sends to take a tensor from one placement to another."""
    whole, ranks = math.prod(shape) * itemsize, _TYPICAL_RANKS
    if is_shard(before) and is_shard(after):
        return whole * (ranks - 1) // ranks**2
    rounds = 2 if is_partial(before) and not is_shard(after) else 1
    return rounds * whole * (ranks - 1) // ranks


# -- all calls together


def _merge(calls: Sequence[CallFindings]) -> Audit:
    """One list of each finding, every row of an overload told once."""
    wrong = _first(w for c in calls for w in c.wrong)
    refuted = {(w.op, w.row) for w in wrong}
    missing = _first(m for c in calls for m in c.missing if (m.op, m.row) not in refuted)
    unsupported = {}
    for finding in (u for c in calls for u in c.unsupported):
        key = (finding.op, finding.reason if not finding.no_strategy else "")
        unsupported.setdefault(key, finding)
    return Audit(
        torch.__version__.split("+")[0],
        tuple(wrong),
        tuple(sorted(missing, key=lambda m: (-m.bytes, m.op, m.row))),
        tuple(unsupported.values()),
        tuple(dict.fromkeys((c.op, c.kind) for c in calls)),
        tuple((c.op, c.call, c.verdict) for c in calls if c.verdict not in ("rows", "no valid rows")),
        tuple((c.op, c.call, row) for c in calls for row in c.cleared),
        len(calls),
        sum(c.claimed for c in calls),
    )


def _first(findings: Iterator[Any]) -> list[Any]:
    kept: dict[tuple[str, str], Any] = {}
    for finding in findings:
        kept.setdefault((finding.op, finding.row), finding)
    return list(kept.values())
