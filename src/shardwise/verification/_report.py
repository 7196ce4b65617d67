"""What a verification found, for people and for programs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..dtensor import Recorded
from ._compare import Check


@dataclass(frozen=True)
class Report:
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
        return max(self.checks, key=lambda c: (not c.ok, c.error / (c.tolerance or 1.0)), default=None)

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

    def __str__(self) -> str:
        lines = [
            f"{self.model} on {self.mesh}, {self.backend}, {self.steps or 'no'} optimizer step"
            f"{'' if self.steps == 1 else 's'}, against {self.reference}",
            f"random operators: {self.random}",
            "",
            f"{'':4} {'compared':12} {'tensors':>7}   {'largest error':>13}   {'tolerance':>9}   tensor",
        ]
        for kind in dict.fromkeys(check.kind for check in self.checks):
            checks = [check for check in self.checks if check.kind == kind]
            worst = max(checks, key=lambda c: (not c.ok, c.error / (c.tolerance or 1.0)))
            lines.append(
                f"{_mark(all(c.ok for c in checks))} {kind:12} {len(checks):7}   {worst.error:13.2e}   "
                f"{worst.tolerance:9.0e}   {worst.name}"
            )
        lines += [f"     {c.kind} {c.name}: error {c.error:.2e}" for c in self.checks if not c.ok][:10]
        if self.first is not None:
            lines.append(f"     first wrong node: {self.first}")
        lines += [
            "",
            f"{'':4} {'collective':16} {'ran':>6} {'priced':>6}   {'bytes ran':>12} {'bytes priced':>12}",
        ]
        ran, priced = _counts(self.collectives), _counts(self.priced)
        for kind in sorted({*ran, *priced}):
            one, other = ran.get(kind, {"count": 0, "bytes": 0}), priced.get(kind, {"count": 0, "bytes": 0})
            lines.append(
                f"{_mark(one == other)} {kind:16} {one['count']:6} {other['count']:6}   "
                f"{one['bytes']:12,} {other['bytes']:12,}"
            )
        if not ran and not priced:
            lines.append(f"{_mark(True)} none")
        elif not self.same_collectives and ran == priced:
            lines.append("FAIL the same collectives, but in another order or of other sizes")
        lines += [
            "",
            f"{'':4} {'peak memory':30}   {'bytes':>15} {'bytes predicted':>15}",
            f"{_mark(self.memory_bounded)} {'values on the first rank':30}   {_bytes(self.peak):>15} "
            f"{_bytes(self.predicted_peak):>15}",
            "",
            "verified: sharded equals unsharded" if self.ok else "NOT verified",
        ]
        return "\n".join(lines)


def _bytes(size: int | None) -> str:
    return "not measured" if size is None else f"{size:,}"


def _mark(ok: bool) -> str:
    return "ok  " if ok else "FAIL"


def _counts(collectives: Sequence[Recorded]) -> dict[str, dict[str, int]]:
    """Count and bytes of each kind."""
    count = Counter(c.kind for c in collectives)
    sizes: Counter[str] = Counter()
    for collective in collectives:
        sizes[collective.kind] += collective.size
    return {kind: {"count": count[kind], "bytes": sizes[kind]} for kind in sorted(count)}
