"""`discover` and `check`: which rows hold for a call, found by experiment.

Every placement of the inputs is tested by the experiments in turn and dropped when no claim about its outputs is left
unrefuted. Most are dropped at the first, so the whole search costs little more than the rows that hold.
"""

import functools
import gc
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement, Replicate

from ..calls import Call, Dispatched, dispatched, with_leaves
from ..errors import UsageError, require
from ..forms import require_form
from ..placements import (
    PARTIALS,
    AnyShard,
    Row,
    Shards,
    fewest_shards,
    is_partial,
    is_replicate,
    is_shard,
    partials_of,
    placement_text,
)
from ._candidate import Candidate, maximal, replicated_partials, with_less_partials
from ._enumeration import combinations, placements_of
from ._experiment import CLAIMED
from ._judge import Expected
from ._results import Counterexample, Found, Verdict, refutation
from ._suite import RANKS, ExperimentSuite, Unjudgeable, refuse_strange


@dataclass(frozen=True)
class ExperimentPolicy:
    """The options of experiments, with `discover` and `check` as methods.

    `partials` are the reductions that are tested, `ranks` the numbers of ranks. `narrowing` accepts partial sums
    through a cast to a narrower float, which rounds every piece before they are added. `empty` lets ranks run on empty
    pieces, which crashes the process in a few native kernels. With `strided`, rows that hold for strided shards too are
    found as such: `S(0, sf=*) -> S(0, sf=*)`.
    """

    partials: tuple[str, ...] = ("sum", "avg", "max", "min")
    narrowing: bool = False
    ranks: tuple[int, ...] = RANKS
    empty: bool = True
    strided: bool = False

    def __post_init__(self) -> None:
        require(self.partials, (tuple, list), "partials", "a tuple such as ('sum', 'max')")
        require(self.ranks, (tuple, list), "ranks", f"a tuple such as {RANKS}")
        for reduction in self.partials:
            if reduction not in PARTIALS:
                raise UsageError(f"unknown reduction {reduction!r}: use some of {', '.join(PARTIALS)}")
        if not self.ranks or any(type(count) is not int or count < 2 for count in self.ranks):
            raise UsageError(
                f"ranks is {self.ranks}: give numbers of ranks, each at least 2, such as {RANKS}"
            )

    def discover(self, op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Found:
        """As `shardwise.discover`, under this policy."""
        return _discover(self, op, args, kwargs)

    def check(self, op: Callable[..., Any], row: Row | str, /, *args: Any, **kwargs: Any) -> Verdict:
        """As `shardwise.check`, under this policy."""
        return _check(self, op, [row], args, kwargs)[0]


def discover(op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Found:
    """All rows that hold for the call `op(*args, **kwargs)`, besides the all-replicated one.

    The tensors are examples: they define shapes and dtypes, and their values are used besides generated ones. Only
    maximal rows are listed: one that takes P(avg), P(max) or P(min) also takes R there.

    >>> found = discover(torch.softmax, torch.rand(4, 6, 8), dim=1)
    >>> [str(row) for row in found.rows]
    ['S(0) -> S(0)', 'S(2) -> S(2)']
    """
    return ExperimentPolicy().discover(op, *args, **kwargs)


def check(op: Callable[..., Any], row: Row | str, /, *args: Any, **kwargs: Any) -> Verdict:
    """Try to refute one row for the call `op(*args, **kwargs)`.

    The verdict is true if every experiment agrees for even shards at least (`shards` says for which), and carries
    a counterexample if values differ. A row may name the local form by which the ranks run.

    >>> bool(check(torch.abs, "P(sum) -> P(sum)", torch.rand(4, 6)))
    False
    >>> table, tokens = torch.rand(12, 4), torch.randint(12, (5,))
    >>> bool(check(torch.ops.aten.embedding.default, "S(0), R -> P(sum) with local lookup", table, tokens))
    True
    """
    return ExperimentPolicy().check(op, row, *args, **kwargs)


def check_rows(call: Call, rows: Sequence[Row]) -> list[Verdict]:
    """As `check` of every row, by the same experiments."""
    return _check(ExperimentPolicy(), call.op, rows, call.args, dict(call.kwargs))


Given = ParamSpec("Given")
Result = TypeVar("Result")


def _undisturbed(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Run without gradients, without warnings (an operator that warns has not failed, whatever the filters) and without
    the cyclic garbage collector, which would otherwise take a third of the time."""

    @functools.wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.no_grad(), np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return function(*args, **kwargs)
        finally:
            if collecting:
                gc.enable()

    return run


@_undisturbed
def _discover(
    policy: ExperimentPolicy, op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Found:
    started = time.process_time()
    call = _bind(op, args, kwargs)
    overloads: tuple[str, ...] = ()
    try:
        refuse_strange(call)
        front = dispatched(call)
        overloads = front.overloads
        suite = _suite_of(call, front, policy)
    except Unjudgeable as why:
        seconds = time.process_time() - started
        return Found(
            call.name, overloads, why.verdict, why.reason, seconds=seconds, arguments=call.arguments_text
        )
    candidates = {}
    rows: dict[Row, Counter[str]] = {}
    input_placements = list(combinations(suite.call, policy.partials))
    if suite.call.size_arguments:
        # With local sizes even replicated inputs, or none, can give sharded outputs: new_zeros, expand.
        input_placements.append((Replicate(),) * len(suite.call.tensors))
    refused: set[tuple[Placement, ...]] = set()
    refuted: set[tuple[Placement, ...]] = set()
    for inputs in input_placements:
        # PartialPieces of partials have the shapes of the whole: what raises on these shapes with R raises with P.
        whole = replicated_partials(inputs)
        if whole in refused and whole != inputs:
            continue
        # R is one way of splitting some partials: what does not hold with R does not hold with these.
        if any(less in refuted for less in with_less_partials(inputs, suite.mutated)):
            refuted.add(inputs)
            continue
        candidate = _try(front, suite, inputs, policy)
        candidates[inputs] = candidate
        if candidate.raised_at_once and not candidate.alive:
            refused.add(inputs)
        if not candidate.alive:
            refuted.add(inputs)
        rows |= {front.user_row(row): evidence for row, evidence in candidate.rows()}
    kept = maximal(rows)
    if policy.strided:
        kept = _with_open_rows(policy, kept, call, front)
    return Found(
        op=call.name,
        overloads=front.overloads,
        verdict="rows" if kept else "no valid rows",
        evidence=kept,
        candidates=candidates,
        dispatched=front,
        experiments=sum(t.experiments for t in candidates.values()),
        combinations=sum(t.judged for t in candidates.values()),
        ignores_values=all(suite.ignores_values),
        generators=len({e.generator for e in suite.experiments}),
        idle=suite.idle,
        seconds=time.process_time() - started,
        arguments=call.arguments_text,
    )


@_undisturbed
def _check(
    policy: ExperimentPolicy,
    op: Callable[..., Any],
    rows: Sequence[Row | str],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> list[Verdict]:
    claimed = [row if isinstance(row, Row) else Row.parse(row) for row in rows]
    call = _bind(op, args, kwargs)
    for row in claimed:
        _check_inputs(row, call)
    try:
        refuse_strange(call)
        front = dispatched(call)
        suites = _Suites(call, front, policy)
        return [_check_kinds(policy, row, front, suites) for row in claimed]
    except Unjudgeable as why:
        return [Verdict(row, False, f"{why.verdict}: {why.reason}") for row in claimed]


# The split factors with which rows for shards of any kind are tested, besides plain shards.
_FACTORS = (2, 3)


class _Suites:
    """The experiments on a call by the split factor of strided shards, with sizes that these divide and do not."""

    def __init__(self, call: Call, front: Dispatched, policy: ExperimentPolicy) -> None:
        self.call, self.front, self.policy = call, front, policy
        self._known: dict[int, ExperimentSuite] = {}

    def of(self, row: Row) -> ExperimentSuite:
        factors = [getattr(p, "split_factor", 1) for p in (*row.inputs, *row.outputs)]
        blocks = max(factors, default=1)
        if blocks not in self._known:
            self._known[blocks] = _suite_of(self.call, self.front, self.policy, blocks)
        return self._known[blocks]


def _check_kinds(policy: ExperimentPolicy, row: Row, front: Dispatched, suites: _Suites) -> Verdict:
    """The verdict on a row; one for shards of any kind has to hold for each that is tested."""
    if not row.is_open:
        return _check_row(policy, row, front, suites.of(row))
    shards: list[Shards] = []
    evidence: Counter[str] = Counter()
    example: Counterexample | None = None
    for factor in (None, *_FACTORS):
        kind = row.with_kind(factor)
        verdict = _check_row(policy, kind, front, suites.of(kind))
        if not verdict:
            return replace(verdict, row=row, reason=f"{kind}: {verdict.reason}")
        assert verdict.shards is not None
        shards.append(verdict.shards)
        evidence += verdict.evidence
        example = example or verdict.counterexample
    held = fewest_shards(shards)
    reason = f"survived {evidence.total()} experiments with plain and strided shards"
    return Verdict(row, True, reason + _only(held), held, evidence, example)


def _with_open_rows(
    policy: ExperimentPolicy, rows: dict[Row, Counter[str]], call: Call, front: Dispatched
) -> dict[Row, Counter[str]]:
    """The rows, those for shards of any kind that hold as well for strided ones as for plain ones."""
    suites, found = _Suites(call, front, policy), {}
    for row, evidence in rows.items():
        opened = row.opened()
        if opened != row and row.local is None:
            verdict = _check_kinds(policy, opened, front, suites)
            if verdict and verdict.shards == row.shards:
                row, evidence = opened, verdict.evidence
        found[row] = evidence
    return found


def open_rows(call: Call, rows: Sequence[Row]) -> list[Row]:
    """The rows of a call, those for shards of any kind (`sf=*`) that experiments with strided shards confirm."""
    policy = ExperimentPolicy()
    claims = [row.opened() for row in rows]
    asked = [
        (row, claim) for row, claim in zip(rows, claims, strict=True) if claim != row and row.local is None
    ]
    verdicts = _check(policy, call.op, [claim for _, claim in asked], call.args, dict(call.kwargs))
    confirmed = {
        row: claim
        for (row, claim), verdict in zip(asked, verdicts, strict=True)
        if verdict
        and verdict.shards is not None
        and fewest_shards((verdict.shards, row.shards)) == row.shards
    }
    return [confirmed.get(row, row) for row in rows]


def _check_row(policy: ExperimentPolicy, row: Row, front: Dispatched, suite: ExperimentSuite) -> Verdict:
    _check_outputs(row, front, suite)
    if row.local is not None:
        require_form(row.local, front.judged.op)
    inputs = front.judged_inputs(row.inputs)
    outputs = _output_options(suite, policy, inputs)
    for position, placement in zip(front.outputs, row.outputs, strict=True):
        outputs[position] = None if placement is None else [placement]
    best: Verdict | None = None
    forms: tuple[str | None, ...] = (None, "sizes") if suite.call.size_arguments else (None,)
    for local in forms if row.local is None else (row.local,):
        candidate = _run(suite, Candidate(inputs, outputs, local, front.outputs))
        verdict = _verdict(row, candidate, front, suite, policy)
        if verdict:
            return verdict
        best = best if best is not None and best.counterexample is not None else verdict
    assert best is not None
    return best


# A wrong row nearly always fails at once; many calls are better than many values for one.
_REFUTING_TURNS = 6


@_undisturbed
def refuted(call: Call, rows: Sequence[Row], policy: ExperimentPolicy | None = None) -> list[Row]:
    """The claimed rows of a call that an experiment refutes, for shards for which they are claimed; empty
    where the call cannot be judged."""
    policy = policy or ExperimentPolicy()
    try:
        refuse_strange(call)
        suite = ExperimentSuite(call, (call.name,), policy.ranks, policy.empty, turns=_REFUTING_TURNS)
    except Unjudgeable:
        return []
    wrong = []
    for row in rows:
        outputs = _output_options(suite, policy, row.inputs)
        outputs[: len(row.outputs)] = [None if p is None else [p] for p in row.outputs]
        candidate = _run(suite, Candidate(row.inputs, outputs, row.local, range(len(row.outputs))))
        claims = [claim for by_placement in candidate.claims for claim in (by_placement or {}).values()]
        if any(case in claim.failed for claim in claims for case in CLAIMED[row.shards]):
            wrong.append(row)
    return wrong


def _suite_of(call: Call, front: Dispatched, policy: ExperimentPolicy, blocks: int = 1) -> ExperimentSuite:
    names = call.name, front.judged.name
    return ExperimentSuite(front.judged, names, policy.ranks, policy.empty, blocks=blocks)


def _bind(op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    require_operator(op)
    return Call(op, with_leaves(args, _on_cpu), with_leaves(kwargs, _on_cpu))


def _on_cpu(value: Any) -> Any:
    """Experiments run on the CPU, whatever device the example is on."""
    if not isinstance(value, Tensor):
        return value
    if value.is_meta:
        raise UsageError("experiments need values, but the example has tensors on the meta device")
    return value.cpu()


def require_operator(op: Any) -> None:
    if not callable(op):
        raise UsageError(
            f"{op!r} is not an operator: give a function such as torch.mm, then the call's arguments"
        )


def _try(
    front: Dispatched, suite: ExperimentSuite, inputs: tuple[Placement, ...], policy: ExperimentPolicy
) -> Candidate:
    """The candidate of one placement of the inputs: plain, then with local sizes where arguments are sizes."""
    outputs = _output_options(suite, policy, inputs)
    if not policy.narrowing:
        for i, options in enumerate(outputs):
            if options is not None and suite.narrows(i, inputs):
                outputs[i] = [p for p in options if not is_partial(p)]
    candidate = _run(suite, Candidate(inputs, outputs))
    sharded_and_raised = candidate.raised_at_once and not any(is_partial(p) for p in inputs)
    if suite.call.size_arguments and (sharded_and_raised or all(is_replicate(p) for p in inputs)):
        with_sizes = _run(suite, Candidate(inputs, outputs, "sizes", front.outputs))
        if next(with_sizes.rows(), None) is not None:
            return with_sizes
    return candidate


def _run(suite: ExperimentSuite, candidate: Candidate) -> Candidate:
    for experiment in suite.experiments:
        candidate.meet(experiment)
        if not candidate.alive:
            break
    return candidate


def _output_options(
    suite: ExperimentSuite, policy: ExperimentPolicy, inputs: Sequence[Placement]
) -> list[list[Placement] | None]:
    """Placements each output may be given; None for outputs that are no tensors. An output that ignores the
    values is not tested as partial: that would be spurious. An input written in place keeps its placement; one that is
    given another shape in place is the output itself."""
    first = suite.experiments[0]
    options: list[list[Placement] | None] = []
    returned = len(first.outputs) - len(suite.mutated)
    for i, expected in enumerate(first.outputs):
        if i >= returned:
            written = suite.mutated[i - returned]
            kept = expected.shape == first.inputs[written].shape
            options.append([inputs[written]] if kept else None)
            continue
        if not isinstance(expected, Expected):
            options.append(None)
            continue
        placements = placements_of(suite.output_shapes[i], expected.dtype, policy.partials)
        if suite.ignores_values[i]:
            placements = [p for p in placements if not is_partial(p)]
        options.append(placements)
    return options


def _verdict(
    row: Row, candidate: Candidate, front: Dispatched, suite: ExperimentSuite, policy: ExperimentPolicy
) -> Verdict:
    claimed: list[Placement | None] = [None] * len(candidate.claims)
    for position, placement in zip(front.outputs, row.outputs, strict=True):
        claimed[position] = placement
    judged = Row(candidate.inputs, tuple(claimed), row.shards, candidate.local)
    example = refutation(candidate, judged)
    for position in front.outputs:
        placement, dtype = claimed[position], suite.experiments[0].dtypes[position]
        if placement is None or dtype is None or not is_partial(placement):
            continue
        if not policy.narrowing and suite.narrows(position, candidate.inputs):
            reason = "narrowing: every piece would be rounded to a narrower dtype before they are reduced"
            return Verdict(row, False, reason, counterexample=example or suite.rounding(judged, position))
        if not partials_of(dtype, [placement.reduce_op]):
            reason = f"an output of {dtype} is never {placement_text(placement)}"
            return Verdict(row, False, reason, counterexample=example)
    survived = next(candidate.rows(), None)
    if survived is None:
        reason = example.reason if example else "no experiment had values that could decide it"
        return Verdict(row, False, reason, counterexample=example)
    found, evidence = survived
    reason = f"survived {evidence.total()} experiments" + _only(found.shards)
    return Verdict(row, True, reason, found.shards, evidence, example)


def _only(shards: Shards) -> str:
    return ", for even shards only" if shards == "even" else ""


def _check_inputs(row: Row, call: Call) -> None:
    tensors = call.tensors
    if len(row.inputs) != len(tensors):
        raise UsageError(
            f"row '{row}' has {len(row.inputs)} inputs, but {call.name} was given {len(tensors)} tensors"
        )
    for i, (placement, tensor) in enumerate(zip(row.inputs, tensors, strict=True)):
        if (is_shard(placement) or isinstance(placement, AnyShard)) and placement.dim >= tensor.ndim:
            raise UsageError(
                f"row '{row}' shards dim {placement.dim} of input {i}, "
                f"but that has shape {tuple(tensor.shape)}, dims 0 to {tensor.ndim - 1}"
            )


def _check_outputs(row: Row, front: Dispatched, suite: ExperimentSuite) -> None:
    expected = [suite.experiments[0].outputs[i] for i in front.outputs]
    if len(row.outputs) != len(expected):
        raise UsageError(
            f"row '{row}' has {len(row.outputs)} outputs, but {front.judged.name} returns {len(expected)}"
        )
    for i, (placement, output) in enumerate(zip(row.outputs, expected, strict=True)):
        if placement is None or not is_shard(placement) or not isinstance(output, Expected):
            continue
        if placement.dim >= len(output.shape):
            raise UsageError(
                f"row '{row}' shards dim {placement.dim} of output {i}, but that has {len(output.shape)} dims"
            )
