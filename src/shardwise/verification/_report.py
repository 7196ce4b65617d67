"""The result of a verification, for people and for programs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..display import Block, Heading, Outcome, Shown, Table
from ..dtensor import Recorded
from ._compare import Check
from ._verdict import Verdict

_MOST = 10  # wrong tensors that are named


@dataclass(frozen=True)
class Report(Shown):
    """The result of `verify`. `ok` only if every tensor, every collective and the peak memory agree.

    `verdict` says whether the values agree, and if not, why; `random` how random operators were compared. `sharded` of
    the `calls` are sharded on some axis. `collectives` are those of one step that ran and `priced` those that the plan
    priced. Memory is in bytes, on the first rank; it is measured only on simulated ranks. `most_sharded` is the report
    on the plan that shards as much as possible, if that ran too.
    """

    model: str
    mesh: str
    backend: str
    steps: int
    reference: str
    random: str
    checks: tuple[Check, ...]
    sharded: int
    calls: int
    collectives: tuple[Recorded, ...]
    priced: tuple[Recorded, ...]
    peak: int | None
    predicted_peak: int
    verdict: Verdict
    most_sharded: "Report | None" = None

    @property
    def same_numbers(self) -> bool:
        """Up to rounding."""
        return self.verdict.ok

    @property
    def same_collectives(self) -> bool:
        return len(self.collectives) == len(self.priced) and all(
            ran == replace(priced, size=ran.size if priced.size is None else priced.size)
            for ran, priced in zip(self.collectives, self.priced, strict=True)
        )

    @property
    def memory_bounded(self) -> bool:
        """A reshape may have to copy what the plan takes for a view."""
        return self.peak is None or self.peak <= 1.05 * self.predicted_peak

    @property
    def ok(self) -> bool:
        alone = self.same_numbers and self.same_collectives and self.memory_bounded
        return alone and (self.most_sharded is None or self.most_sharded.ok)

    @property
    def worst(self) -> Check | None:
        """The tensor that comes closest to its tolerance, or goes furthest past it."""
        return max(self.checks, key=_badness, default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "verdict": self.verdict.kind,
            "reason": self.verdict.reason,
            "model": self.model,
            "mesh": self.mesh,
            "backend": self.backend,
            "steps": self.steps,
            "reference": self.reference,
            "random": self.random,
            "checks": [
                {"kind": c.kind, "name": c.name, "error": c.error, "tolerance": c.tolerance, "ok": c.ok}
                for c in self.checks
            ],
            "calls": {"sharded": self.sharded, "all": self.calls},
            "collectives": {"ran": _counts(self.collectives), "priced": _counts(self.priced)},
            "memory": {"peak": self.peak, "predicted": self.predicted_peak},
            "most_sharded": None if self.most_sharded is None else self.most_sharded.to_json(),
        }

    def blocks(self) -> Iterator[Block]:
        steps = f"{self.steps or 'no'} optimizer step{'' if self.steps == 1 else 's'}"
        yield Heading(1, f"{self.model} on {self.mesh}, {self.backend}, {steps}, against {self.reference}")
        yield f"random operators: {self.random}"
        yield from self._found()
        if self.most_sharded is not None:
            yield Heading(2, "The plan that shards as much as possible")
            yield from self.most_sharded._found() if not self.most_sharded.ok else self.most_sharded._brief()
        yield Outcome(self.ok, self._outcome)

    def _found(self) -> Iterator[Block]:
        if self.verdict.kind == "not compared":
            yield f"FAIL not compared: {self.verdict.reason}"
        else:
            yield self._compared()
            yield from (f"{c.kind} {c.name}: error {c.error:.2e}" for c in self._wrong[:_MOST])
            yield from self._why()
        yield self._amount
        yield from self._communicated()
        yield Table(
            ("", "peak memory", ">bytes", ">bytes predicted"),
            [
                (
                    _mark(self.memory_bounded),
                    "values on the first rank",
                    _bytes(self.peak),
                    _bytes(self.predicted_peak),
                )
            ],
        )

    def _brief(self) -> Iterator[Block]:
        worst = self.worst
        error = "" if worst is None else f", largest error {worst.error:.2e} ({worst.kind} {worst.name})"
        yield f"{self._amount}; {len(self.checks)} tensors agree{error}"
        yield from self._why()

    def _why(self) -> Iterator[Block]:
        if self.verdict.reason:
            yield f"{'rounding: ' if self.verdict.kind == 'rounding' else ''}{self.verdict.reason}"

    @property
    def _amount(self) -> str:
        return f"{self.sharded} of {self.calls} calls sharded, {len(self.collectives)} collectives"

    @property
    def _outcome(self) -> str:
        if not self.ok:
            return "NOT verified"
        verdicts = [run.verdict for run in (self, self.most_sharded) if run is not None]
        rounds = any(verdict.kind == "rounding" for verdict in verdicts)
        return f"verified: sharded equals unsharded{' up to rounding' if rounds else ''}"

    @property
    def _wrong(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]

    def _compared(self) -> Table:
        """A line for each kind of tensor, with the one that comes closest to its tolerance."""
        by_kind: dict[str, list[Check]] = {}
        for check in self.checks:
            by_kind.setdefault(check.kind, []).append(check)
        worst = {kind: max(checks, key=_badness) for kind, checks in by_kind.items()}
        return Table(
            ("", "compared", ">tensors", ">largest error", ">tolerance", "tensor"),
            [
                (self._mark(w), kind, str(len(by_kind[kind])), f"{w.error:.2e}", f"{w.tolerance:.0e}", w.name)
                for kind, w in worst.items()
            ],
        )

    def _mark(self, check: Check) -> str:
        return "rounding" if self.verdict.kind == "rounding" and not check.ok else _mark(check.ok)

    def _communicated(self) -> Iterator[Block]:
        ran, priced, none = _counts(self.collectives), _counts(self.priced), {"count": 0, "bytes": 0}
        rows = []
        by_values = {collective.kind for collective in self.priced if collective.size is None}
        for kind in sorted({*ran, *priced}):
            one, other = ran.get(kind, none), priced.get(kind, none)
            same = one["count"] == other["count"] if kind in by_values else one == other
            sizes = [f"{n:,}" for n in (one["count"], other["count"], one["bytes"], other["bytes"])]
            sizes[-1] = "by values" if kind in by_values else sizes[-1]
            rows.append((_mark(same), kind, *sizes))
        if not rows:
            rows.append((_mark(True), "none", "", "", "", ""))
        yield Table(("", "collective", ">ran", ">priced", ">bytes ran", ">bytes priced"), rows)
        if not self.same_collectives and ran == priced:
            yield "FAIL the same collectives, but in another order or of other sizes"

    def __repr__(self) -> str:
        said = "verified" if self.ok else "NOT verified"
        return f"<Report of {self.model} on {self.mesh}: {said}, {len(self.checks)} tensors>"


def _badness(check: Check) -> tuple[bool, float]:
    """How close a tensor comes to its tolerance, or how far past it it goes."""
    return not check.ok, check.error / (check.tolerance or 1.0)


def _bytes(size: int | None) -> str:
    return "not measured" if size is None else f"{size:,}"


def _mark(ok: bool) -> str:
    return "ok" if ok else "FAIL"


def _counts(collectives: Sequence[Recorded]) -> dict[str, dict[str, int]]:
    """Count and bytes of each kind."""
    count = Counter(c.kind for c in collectives)
    sizes: Counter[str] = Counter()
    for collective in collectives:
        sizes[collective.kind] += collective.size or 0
    return {kind: {"count": count[kind], "bytes": sizes[kind]} for kind in sorted(count)}
