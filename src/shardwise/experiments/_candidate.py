"""Testing candidate rows in experiments until they fail; those that survive are the rows found.

A `Candidate` follows one placement of the inputs. Every output keeps its own set of placements that have agreed with
all local results so far, separately for whole, even, uneven and empty shards, since a row may hold for some of
these only.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from torch.distributed.tensor.placement_types import Placement, Replicate

from ..placements import Row, Shards, fewest_shards, is_partial, is_replicate, is_shard
from ._experiment import Division, Experiment, LocalRunFailed

# R is one way of splitting these partials, so a row that takes the partial takes R as well.
COVERS_REPLICATE = ("avg", "max", "min")


@dataclass
class Claim:
    """The claim that an output has a placement: the cases in which it agreed and failed, with the evidence."""

    passed: Counter[Division] = field(default_factory=Counter)
    failed: dict[Division, Experiment] = field(default_factory=dict)
    reasons: dict[Division, str] = field(default_factory=dict)
    evidence: Counter[str] = field(default_factory=Counter)
    alive: bool = True

    def fail(self, case: Division, experiment: Experiment, reason: str) -> None:
        """Failing for uneven or empty shards narrows a claim; failing otherwise ends it."""
        self.failed.setdefault(case, experiment)
        self.reasons.setdefault(case, reason)
        self.alive = self.alive and case in ("uneven", "empty")

    @property
    def shards(self) -> Shards | None:
        """The shard sizes for which the claim held; None if it failed, or was tested on degenerate values only."""
        if not self.alive or not self.evidence:
            return None
        if "uneven" in self.failed:
            return "even" if self.passed["even"] else None
        if self.passed["whole"] or (self.passed["empty"] and "empty" not in self.failed):
            return "any"
        if self.passed["uneven"]:
            return "nonempty"
        return "even" if self.passed["even"] else None


class Candidate:
    """One placement of the inputs under test, with the claims about each output that are still open."""

    def __init__(
        self,
        inputs: tuple[Placement, ...],
        outputs: Sequence[Sequence[Placement] | None],
        local: str | None = None,
        shown: Sequence[int] = (),
    ) -> None:
        """`shown` are the outputs that the row will contain."""
        self.inputs = inputs
        self.local = local
        self.shown = shown
        self.claims = [None if o is None else {p: Claim() for p in o} for o in outputs]
        self.experiments = 0
        self.judged = 0
        self.raised_at_once = False
        # For each output that has claims, those that are not refuted.
        self._live = [(i, list(c.items())) for i, c in enumerate(self.claims) if c is not None]

    @property
    def alive(self) -> bool:
        return all(claims for _, claims in self._live)

    def meet(self, experiment: Experiment) -> None:
        """Run one experiment and drop what it refutes."""
        if not experiment.fits(self.inputs):
            return
        case = experiment.input_case(self.inputs)
        if all(case in claim.failed for _, claims in self._live for _, claim in claims):
            return
        self.experiments += 1
        self.judged += sum(len(claims) for _, claims in self._live)
        if self.local is None:
            self._meet_as_it_is(experiment, case)
        else:
            self._meet_in_local_form(experiment, case)
        for _, claims in self._live:
            if not all(claim.alive for _, claim in claims):
                claims[:] = [(placement, claim) for placement, claim in claims if claim.alive]

    def _meet_as_it_is(self, experiment: Experiment, case: Division) -> None:
        try:
            local = experiment.run(self.inputs)
        except LocalRunFailed as failure:
            self.raised_at_once = self.raised_at_once or self.experiments == 1
            self._fail_all(experiment, case, str(failure))
            return
        for i, claims in self._live:
            for placement, claim in claims:
                self._judge(experiment, case, i, placement, claim, local[i])

    def _meet_in_local_form(self, experiment: Experiment, case: Division) -> None:
        """A local form may depend on the placements of the outputs, so each placement of the first output
        is a separate run; the other outputs get the same placement where possible."""
        first = next(c for c in self.claims if c is not None)
        for placement in [p for p, claim in first.items() if claim.alive]:
            placements = [_beside(claims, placement) for claims in self.claims]
            affected = [
                (i, p, c[p])
                for i, (c, p) in enumerate(zip(self.claims, placements, strict=True))
                if c is not None and p is not None
            ]
            together = case  # a form may follow from any output, so shards are even where all the row's are
            for i, p, _ in affected:
                if i in self.shown:
                    together = experiment.row_case(together, i, p)
            try:
                local = experiment.run(self.inputs, self.local, placements)
            except LocalRunFailed as failure:
                for _, _, claim in affected:
                    claim.fail(together, experiment, str(failure))
                continue
            for i, p, claim in affected:
                self._judge(experiment, together, i, p, claim, local[i])

    def _judge(
        self,
        experiment: Experiment,
        case: Division,
        output: int,
        placement: Placement,
        claim: Claim,
        local: list,
    ) -> None:
        row_case = experiment.row_case(case, output, placement)
        if row_case in claim.failed:
            return
        expected = experiment.outputs[output]
        if expected.agrees(local, placement, experiment.excused(self.inputs, placement, self.local)):
            claim.passed[row_case] += 1
            if not expected.degenerate:
                claim.evidence[experiment.generator] += 1
        else:
            claim.fail(row_case, experiment, "values differ")

    def _fail_all(self, experiment: Experiment, case: Division, reason: str) -> None:
        for claims in self.claims:
            for claim in (claims or {}).values():
                claim.fail(case, experiment, reason)

    def rows(self) -> Iterator[tuple[Row, Counter[str]]]:
        """What survived, with the experiments survived by generator."""
        options: list[list[tuple[Placement | None, Claim | None]]] = []
        for claims in self.claims:
            if claims is None:
                options.append([(None, None)])
            else:
                options.append([(p, c) for p, c in claims.items() if c.shards is not None])
        for choice in itertools.product(*options):
            held = [c for _, c in choice if c is not None]
            shards = fewest_shards(c.shards for c in held if c.shards is not None)
            evidence = min((c.evidence for c in held), key=Counter.total)
            yield Row(self.inputs, tuple(p for p, _ in choice), shards, self.local), evidence


def _beside(claims: dict[Placement, Claim] | None, placement: Placement) -> Placement | None:
    """The placement of an output when the first one has `placement`; None where that is open."""
    if claims is None or placement in claims:
        return placement if claims else None
    return next(iter(claims)) if len(claims) == 1 else None


def implies(stronger: Row, weaker: Row) -> bool:
    """True if the first row implies the second: R is a special case of P(avg), P(max) and P(min)."""
    if fewest_shards((stronger.shards, weaker.shards)) != weaker.shards:
        return False
    if stronger.local is not None and weaker.local is None:
        return False
    return all(
        given == asked or (is_replicate(asked) and _covers(given))
        for given, asked in zip(stronger.inputs, weaker.inputs, strict=True)
    ) and all(
        got == claimed or (got is not None and is_replicate(got) and claimed is not None and _covers(claimed))
        for got, claimed in zip(stronger.outputs, weaker.outputs, strict=True)
    )


def _covers(placement: Placement) -> bool:
    return is_partial(placement) and placement.reduce_op in COVERS_REPLICATE


def replicated_partials(inputs: Sequence[Placement]) -> tuple[Placement, ...]:
    """The placements with R for every partial: local pieces have the same shapes."""
    return tuple(Replicate() if is_partial(p) else p for p in inputs)


def with_less_partials(
    inputs: Sequence[Placement], written: Collection[int]
) -> Iterator[tuple[Placement, ...]]:
    """The placements with R for one of the partials that cover it, and with R for all of them; inputs that are
    written keep theirs, which are also those of the results."""
    covering = [i for i, p in enumerate(inputs) if _covers(p) and i not in written]
    for places in [[i] for i in covering] + ([covering] if len(covering) > 1 else []):
        yield tuple(Replicate() if i in places else p for i, p in enumerate(inputs))


def maximal(rows: dict[Row, Counter[str]]) -> dict[Row, Counter[str]]:
    """Rows that no other row implies, in reading order."""
    if not rows:
        return {}
    first = next(iter(rows))
    replicated = Row(
        tuple(Replicate() for _ in first.inputs),
        tuple(None if o is None else Replicate() for o in first.outputs),
    )
    kept = {}
    for row in sorted(rows, key=_reading_order):
        others = (other for other in (replicated, *rows) if other != row)
        if not any(implies(other, row) for other in others) and row != replicated:
            kept[row] = rows[row]
    return kept


def _reading_order(row: Row) -> tuple:
    """Shards before partials, dims in order."""

    def key(placement: Placement | None) -> tuple[int, int, str]:
        if placement is None or is_replicate(placement):
            return (1, 0, "")
        if is_shard(placement):
            return (0, placement.dim, "")
        return (2, ("sum", "avg", "max", "min", "product").index(placement.reduce_op), "")

    has_partial = any(is_partial(p) for p in row.inputs)
    return (
        has_partial,
        [key(p) for p in row.inputs],
        [key(p) for p in row.outputs],
        row.shards,
        row.local or "",
    )
