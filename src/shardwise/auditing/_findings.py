"""The findings of an audit: wrong rules with their reproductions, missing rows with their price, unsupported calls."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, TypeVar

import yaml

from ..documents import Field
from ..placements import SHARDS, Row, Shards

Finding = TypeVar("Finding")

_REFUTED = "# The rows of DTensor that `shardwise audit` refuted.\n"


@dataclass(frozen=True)
class Wrong:
    """A row that DTensor claims and that gives wrong numbers; `script` shows it and printed `output`. `designed` says
    that no sample of torch shows it, but a call that was designed to. `right` are rows that hold for the call: those
    with the same inputs, or all where there are none."""

    op: str
    call: str
    kind: str
    row: str
    script: str
    output: str
    when: str = ""
    designed: bool = False
    right: tuple[str, ...] = ()

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
    """A call on which DTensor raises: it has no strategy, or one whose local call fails. `rows` are those that
    experiments confirmed: of the whole call, or with the inputs of the strategy that fails."""

    op: str
    call: str
    reason: str
    no_strategy: bool
    rows: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Unsupported {self.call}>"


@dataclass
class CallFindings:
    """The findings of one call of an overload."""

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
    designed: bool = False

    def to_document(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (0, False, [])}

    @classmethod
    def from_document(cls, document: Field) -> "CallFindings":
        return _read(cls, document)


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

    @classmethod
    def of(cls, torch: str, calls: Sequence[CallFindings]) -> "Audit":
        """The findings of calls: one list per kind, every row of an overload once."""
        shortest = sorted((w for c in calls for w in c.wrong), key=lambda w: (w.designed, len(w.script)))
        wrong = sorted(_first(shortest), key=lambda w: (w.op, w.row))
        refuted = {(w.op, w.row) for w in wrong}
        missing = _first(m for c in calls for m in c.missing if (m.op, m.row) not in refuted)
        unsupported: dict[tuple[str, str], Unsupported] = {}
        for finding in (u for c in calls for u in c.unsupported):
            key = (finding.op, finding.reason if not finding.no_strategy else "")
            unsupported.setdefault(key, finding)
        return cls(
            torch,
            tuple(wrong),
            tuple(sorted(missing, key=lambda m: (-m.bytes, m.op, m.row))),
            tuple(unsupported.values()),
            tuple(dict.fromkeys((c.op, c.kind) for c in calls)),
            tuple((c.op, c.call, c.verdict) for c in calls if c.verdict not in ("rows", "no valid rows")),
            tuple((c.op, c.call, row) for c in calls for row in c.cleared),
            len(calls),
            sum(c.claimed for c in calls),
            sum(c.designed for c in calls),
        )

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


def _first(findings: Iterable[Any]) -> list[Any]:
    kept: dict[tuple[str, str], Any] = {}
    for finding in findings:
        kept.setdefault((finding.op, finding.row), finding)
    return list(kept.values())


# How the values of findings are read, by their type.
_READ: dict[Any, Callable[[Field], Any]] = {
    str: Field.text,
    int: Field.integer,
    bool: Field.flag,
    Shards: lambda value: value.one_of(SHARDS),
    str | None: lambda value: value.optional(Field.text),
    list[str]: lambda value: [item.text() for item in value.items()],
    tuple[str, ...]: lambda value: tuple(item.text() for item in value.items()),
    list[Wrong]: lambda value: [_read(Wrong, item) for item in value.items()],
    list[Missing]: lambda value: [_read(Missing, item) for item in value.items()],
    list[Unsupported]: lambda value: [_read(Unsupported, item) for item in value.items()],
}


def _read(kind: type[Finding], document: Field) -> Finding:
    """A finding from the object of its fields; those with a default may be left out."""
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    needed = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    given = document.object(needed, list(known))
    return kind(**{name: _READ[known[name].type](value) for name, value in given.items()})
