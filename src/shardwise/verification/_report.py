"""What a verification found, for people and for programs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..display import Block, Heading, Outcome, Shown, Table
from ..dtensor import Recorded
from ._compare import Check

_MOST = 10  # wrong tensors that are named


@dataclass(frozen=True)
class Report(Shown):
    """The result of `verify`. `ok` only if every tensor, every collective and the peak memory agree.

    `first` names the first node whose result is wrong and says how; `random` how draws were compared. `collectives` are
    those of one step that ran and `priced` those that the plan priced. Memory is in bytes, on the first rank;
    it is measured on simulated ranks alone.
    """

    model: str
    mesh: str
    backend: str
    steps: int
    reference: str
    random: str
    checks: tuple[Check, ...]
    collectives: tuple[Recorded, ...]
    priced: tuple[Recorded, ...]
    peak: int | None
    predicted_peak: int
    first: str | None = None

    @property
    def same_numbers(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def same_collectives(self) -> bool:
        return self.collectives == self.priced

    @property
    def memory_bounded(self) -> bool:
        """A reshape may have to copy what the plan takes for a view."""
        return self.peak is None or self.peak <= 1.05 * self.predicted_peak

    @property
    def ok(self) -> bool:
        return self.same_numbers and self.same_collectives and self.memory_bounded

    @property
    def worst(self) -> Check | None:
        """The tensor that comes closest to its tolerance, or goes furthest past it."""
        return max(self.checks, key=_badness, default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
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
            "first_wrong_node": self.first,
            "collectives": {"ran": _counts(self.collectives), "priced": _counts(self.priced)},
            "memory": {"peak": self.peak, "predicted": self.predicted_peak},
        }

    def blocks(self) -> Iterator[Block]:
        steps = f"{self.steps or 'no'} optimizer step{'' if self.steps == 1 else 's'}"
        yield Heading(1, f"{self.model} on {self.mesh}, {self.backend}, {steps}, against {self.reference}")
        yield f"random operators: {self.random}"
        yield self._compared()
        yield from (f"{c.kind} {c.name}: error {c.error:.2e}" for c in self._wrong[:_MOST])
        if self.first is not None:
            yield f"first wrong node: {self.first}"
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
        yield Outcome(self.ok, "verified: sharded equals unsharded" if self.ok else "NOT verified")

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
                (_mark(w.ok), kind, str(len(by_kind[kind])), f"{w.error:.2e}", f"{w.tolerance:.0e}", w.name)
                for kind, w in worst.items()
            ],
        )

    def _communicated(self) -> Iterator[Block]:
        ran, priced, none = _counts(self.collectives), _counts(self.priced), {"count": 0, "bytes": 0}
        rows = []
        for kind in sorted({*ran, *priced}):
            one, other = ran.get(kind, none), priced.get(kind, none)
            numbers = (one["count"], other["count"], one["bytes"], other["bytes"])
            rows.append((_mark(one == other), kind, *(f"{n:,}" for n in numbers)))
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
        sizes[collective.kind] += collective.size
    return {kind: {"count": count[kind], "bytes": sizes[kind]} for kind in sorted(count)}
