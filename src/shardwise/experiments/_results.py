"""What discovery and checking return: rows with their evidence, and refutations that can be replayed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement

from ..calls import Dispatched
from ..display import Block, Heading, Outcome, Shown, Table
from ..placements import Row, Shards, is_shard
from ._candidate import Candidate, replicated_partials
from ._experiment import CLAIMED, Experiment, LocalRunFailed


@dataclass(frozen=True)
class Counterexample:
    """An experiment in which a row fails: the same inputs and pieces, run again by `replay`."""

    row: Row
    output: int
    experiment: Experiment
    reason: str

    @property
    def inputs(self) -> Sequence[Tensor]:
        """The whole inputs."""
        return self.experiment.inputs

    @property
    def pieces(self) -> list[list[Tensor]]:
        """For each input, the pieces of all ranks."""
        return [self.experiment.pieces(i, p) for i, p in enumerate(self.row.inputs)]

    @property
    def expected(self) -> Any:
        """The output of the whole call."""
        return self.experiment.outputs[self.output].array

    def replay(self) -> bool:
        """Run it again; True if the row fails again."""
        placement = self.row.outputs[self.output]
        assert placement is not None
        try:
            local = self.experiment.run(self.row.inputs, self.row.local, self.row.outputs)
        except LocalRunFailed:
            return True
        return not self.experiment.outputs[self.output].agrees(local[self.output], placement)

    def shown(self) -> str:
        """What happened on each rank, where it differs first."""
        experiment, expected = self.experiment, self.experiment.outputs[self.output]
        lines = [f"with {experiment!r}: {self.reason}"]
        placement = self.row.outputs[self.output]
        if self.reason != "values differ" or placement is None:
            return lines[0]
        local = experiment.run(self.row.inputs, self.row.local, self.row.outputs)[self.output]
        if is_shard(placement) or any(piece.shape != expected.shape for piece in local):
            lines.append(
                f"the whole output has shape {expected.shape}, the ranks' {[p.shape for p in local]}"
            )
            return "\n".join(lines)
        with np.errstate(all="ignore"):
            place = expected.first_difference(local, placement)
        whole = expected.array[place] if place else expected.array
        ranks = ", ".join(f"{piece[place]:.6g}" for piece in local)
        at = f"at {tuple(int(i) for i in place)} " if place else ""
        lines.append(f"{at}the whole output is {whole:.6g}; the ranks have {ranks}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.row} fails ({self.reason}) with {self.experiment!r}"

    def __repr__(self) -> str:
        return f"<Counterexample: {self}>"


@dataclass(frozen=True)
class Verdict(Shown):
    """The answer to one claim: true if no experiment with even shards refuted it. The counterexample is one with shards
    of which the row speaks; it may be there for a row that holds for `shards` alone."""

    row: Row
    valid: bool
    reason: str
    shards: Shards | None = None
    evidence: Counter[str] = field(default_factory=Counter)
    counterexample: Counterexample | None = None

    def __bool__(self) -> bool:
        return self.valid

    def to_json(self) -> dict[str, Any]:
        return {
            "row": str(self.row),
            "valid": self.valid,
            "shards": self.shards,
            "reason": self.reason,
            "evidence": dict(self.evidence),
            "counterexample": None if self.counterexample is None else repr(self.counterexample.experiment),
        }

    @property
    def _sentence(self) -> str:
        return f"{self.row} {'holds' if self.valid else 'refuted'}: {self.reason}"

    def blocks(self) -> Iterator[Block]:
        yield Outcome(self.valid, self._sentence)
        if self.counterexample is not None and not self.valid:
            yield from self.counterexample.shown().splitlines()

    def __repr__(self) -> str:
        return f"<Verdict: {self._sentence}>"


@dataclass(frozen=True)
class Found(Shown):
    """How a call may be sharded: `rows` beside the all-replicated one, each with its `evidence`.

    `generators` is how many kinds of values the call accepted; with few of them the evidence is weak. Those that made
    values of no shape are `idle`, each with the error that it raised.
    `combinations` counts the decided claims: placements of the inputs and an output, compared with one run of all
    ranks.
    """

    op: str
    overloads: tuple[str, ...]
    verdict: str
    reason: str = ""
    evidence: dict[Row, Counter[str]] = field(default_factory=dict)
    candidates: dict[tuple[Placement, ...], Candidate] = field(default_factory=dict, repr=False)
    dispatched: Dispatched | None = field(default=None, repr=False)
    experiments: int = 0
    combinations: int = 0
    ignores_values: bool = False
    generators: int = 0
    idle: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    arguments: str = ""  # of the call, as text

    @property
    def rows(self) -> list[Row]:
        return list(self.evidence)

    def counterexample(self, row: Row | str) -> Counterexample | None:
        """The experiment that refuted a row, if one did."""
        row = Row.parse(row) if isinstance(row, str) else row
        if self.dispatched is None:
            return None
        inputs = self.dispatched.judged_inputs(row.inputs)
        # Placements that differ only in partials from ones that raise were not tested: they raise too.
        candidate = self.candidates.get(inputs) or self.candidates.get(replicated_partials(inputs))
        if candidate is None:
            return None
        outputs: list[Placement | None] = [None] * len(candidate.claims)
        for position, placement in zip(self.dispatched.outputs, row.outputs, strict=True):
            outputs[position] = placement
        return refutation(candidate, Row(inputs, tuple(outputs), row.shards, candidate.local))

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "overloads": list(self.overloads),
            "verdict": self.verdict,
            "reason": self.reason,
            "rows": [{**row.to_json(), "evidence": dict(e)} for row, e in self.evidence.items()],
            "experiments": self.experiments,
            "combinations": self.combinations,
            "idle": self.idle,
            "seconds": round(self.seconds, 3),
        }

    def blocks(self) -> Iterator[Block]:
        yield Heading(1, f"{self.op}{self.arguments}")
        if self.overloads:
            yield f"Dispatches to {', '.join(f'`{name}`' for name in self.overloads)}."
        for name, error in self.idle.items():
            yield f"The generator `{name}` made values of no shape: {error}."
        if not self.rows:
            yield f"No rows but the replicated one: {self.reason or self.verdict}."
            return
        yield f"{self.combinations} claims tested in {self.experiments} experiments."
        yield Heading(2, "Rows that hold")
        yield Table(
            ("row", "shards", "local form", ">experiments passed"),
            [(f"`{r}`", r.shards, r.local or "", str(e.total())) for r, e in self.evidence.items()],
        )

    def __repr__(self) -> str:
        what = f"{len(self.rows)} rows" if self.rows else self.verdict
        return f"<Found {self.op}{self.arguments}: {what}>"


def refutation(candidate: Candidate, row: Row) -> Counterexample | None:
    """The first experiment, with shards of which the row speaks, in which an output did not have its placement."""
    for i, (claims, placement) in enumerate(zip(candidate.claims, row.outputs, strict=True)):
        if claims is None or placement not in claims:
            continue
        claim = claims[placement]
        for case in CLAIMED[row.shards]:
            if case in claim.failed:
                return Counterexample(row, i, claim.failed[case], claim.reasons[case])
    return None
