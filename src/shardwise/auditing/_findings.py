"""The findings of an audit: wrong rules with their reproductions, missing rows with their price, unsupported calls."""

from dataclasses import asdict, dataclass
from typing import Any

import yaml

from ..placements import Row, Shards

_REFUTED = "# The rows of DTensor that `shardwise audit` refuted.\n"


@dataclass(frozen=True)
class Wrong:
    """A row that DTensor claims and that gives wrong numbers; `script` shows it and printed `output`. `designed` says
    that no sample of torch shows it, but a call that was designed to."""

    op: str
    call: str
    kind: str
    row: str
    script: str
    output: str
    when: str = ""
    designed: bool = False

    def __repr__(self) -> str:
        return f"<Wrong {self.op}: {self.row}>"


@dataclass(frozen=True)
class Missing:
    """A row that holds and that DTensor lacks: it moves `bytes` a rank instead, on a typical shape."""

    op: str
    call: str
    kind: str
    row: str
    shards: Shards
    local: str | None
    bytes: int
    instead: str
    partial: bool

    @property
    def text(self) -> str:
        """The row with its condition and its local form."""
        return Row.parse(self.row, self.shards, self.local).text

    def __repr__(self) -> str:
        return f"<Missing {self.op}: {self.text}>"


@dataclass(frozen=True)
class Unsupported:
    """A call on which DTensor raises: it has no strategy, or one whose local call fails."""

    op: str
    call: str
    reason: str
    no_strategy: bool
    rows: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Unsupported {self.call}>"


@dataclass(frozen=True)
class Audit:
    """The findings for one version of torch. `not_judged` are calls that experiments cannot decide (random,
    crashed, and so on), `cleared` claims that experiments did not confirm but that DTensor computed right; `designed`
    of the `calls` were designed from samples."""

    torch: str
    wrong: tuple[Wrong, ...]
    missing: tuple[Missing, ...]
    unsupported: tuple[Unsupported, ...]
    overloads: tuple[tuple[str, str], ...]
    not_judged: tuple[tuple[str, str, str], ...]
    cleared: tuple[tuple[str, str, str], ...]
    calls: int
    claimed: int
    designed: int = 0

    def refuted_yaml(self) -> str:
        """The wrong rows by overload, as `install(replace="wrong")` reads them."""
        rows: dict[str, list[str]] = {}
        for w in self.wrong:
            rows.setdefault(w.op, []).append(w.row + (f" ({w.when})" if w.when else ""))
        return _REFUTED + yaml.safe_dump({"torch": self.torch, "wrong": rows}, sort_keys=False, width=110)

    def to_json(self) -> dict[str, Any]:
        return {
            "torch": self.torch,
            "calls": self.calls,
            "designed": self.designed,
            "claimed": self.claimed,
            "overloads": [{"op": op, "registration": kind} for op, kind in self.overloads],
            "wrong": [asdict(w) for w in self.wrong],
            "missing": [asdict(m) for m in self.missing],
            "unsupported": [{**asdict(u), "rows": list(u.rows)} for u in self.unsupported],
            "not_judged": [{"op": o, "call": c, "verdict": v} for o, c, v in self.not_judged],
            "cleared": [{"op": o, "call": c, "row": r} for o, c, r in self.cleared],
        }

    def __str__(self) -> str:
        return (
            f"torch {self.torch}: {len(self.overloads)} overloads, {self.calls} calls, "
            f"{self.claimed} claimed rows; {len(self.wrong)} wrong, {len(self.missing)} missing, "
            f"{len(self.unsupported)} unsupported"
        )

    def __repr__(self) -> str:
        return f"<Audit of {self}>"
