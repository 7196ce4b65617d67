"""An audit as an HTML page and as Markdown, beside that of another torch; and a page of each wrong rule."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ..auditing import Audit, Missing, Wrong
from ..display import Block, Heading, Script, Table, as_markdown
from ._prose import prose_page

Finding = TypeVar("Finding", Wrong, Missing)

# How the heading of an overload's page begins.
ISSUE = "DTensor computes wrong numbers for"


def audit_page(audit: Audit, command: str = "", beside: Audit | None = None) -> str:
    """An audit as one self-contained HTML file; `command` is the command that made it, `beside` an audit of another
    torch to compare with."""
    return prose_page(_blocks(audit, command, beside))


def audit_markdown(
    audit: Audit, command: str = "", beside: Audit | None = None, folder: str | None = None
) -> str:
    """The same as Markdown. The scripts are on the pages of a folder, relative to this one, where one is given."""
    return as_markdown(_blocks(audit, command, beside, folder))


def audit_issues(audit: Audit) -> dict[str, str]:
    """For each overload with a wrong rule a page that could be an issue of its own: what DTensor claims, a script and
    what it prints, and the row that would be right."""
    return {op: as_markdown(_issue(audit.torch, op, found)) for op, found in _by_op(audit.wrong).items()}


def _issue(torch: str, op: str, found: Sequence[Wrong]) -> Iterator[Block]:
    yield Heading(1, f"{ISSUE} {op}")
    yield (
        f"In torch {torch}, registered as {found[0].kind}. A row `S(0), R -> S(0)` says: if the inputs are placed so, "
        "the operator on each rank's local shards, with no communication, gives an output placed so. Each script below "
        "runs DTensor on simulated ranks, in one process, and prints one element of its result and the correct one."
    )
    for w in found:
        yield Heading(2, f"`{w.row}`" + (f", {w.when}" if w.when else ""))
        yield f"Claimed for `{w.call}`."
        yield Script("", w.script, w.output)
        yield _correction(w)


def _correction(wrong: Wrong) -> str:
    same = [row for row in wrong.right if row.split(" -> ")[0] == wrong.row.split(" -> ")[0]]
    if same:
        return f"Right would be {_some(same)}."
    if not wrong.right:
        return "Right would be to replicate the inputs: no other row is known to hold for this call."
    return f"No row with these inputs holds without communication. Those that hold for this call: {_some(wrong.right)}."


def _blocks(
    audit: Audit, command: str, beside: Audit | None = None, folder: str | None = None
) -> Iterator[Block]:
    yield Heading(1, f"DTensor's rules in torch {audit.torch}, tested by experiment")
    if command:
        yield f"Made by `{command}`."
    yield (
        f"{len(audit.overloads)} overloads were audited in {audit.calls - audit.designed} calls from torch's OpInfo "
        f"samples, forward and backward, and in {audit.designed} calls designed from them; DTensor claims "
        f"{audit.claimed} rows for them. A row `S(0), R -> S(0)` says: if the inputs are placed so, running the "
        "operator on each rank's local shards gives an output placed so. Each claim was tested by experiments on 2, 3 "
        "and 4 ranks."
    )
    kinds: dict[str, int] = defaultdict(int)
    for _, kind in audit.overloads:
        kinds[kind] += 1
    wrong, missing = _by_op(audit.wrong), _by_op(audit.missing)
    unsupported = {u.op for u in audit.unsupported if u.no_strategy}
    other = {u.op for u in audit.unsupported} - unsupported
    yield Table(
        ("finding", "overloads", "rows"),
        [
            ("wrong: DTensor computes a wrong number", str(len(wrong)), str(len(audit.wrong))),
            ("missing: a row holds and DTensor communicates", str(len(missing)), str(len(audit.missing))),
            ("unsupported: no strategy", str(len(unsupported)), ""),
            ("unsupported: raises another error", str(len(other)), ""),
        ],
    )
    yield "Registered as: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) + "."
    yield from _wrong(wrong, folder)
    yield from _unsupported(audit)
    yield from _missing(audit)
    if beside is not None:
        yield from _beside(audit, beside)
    yield from _not_judged(audit)


def _wrong(by_op: dict[str, list[Wrong]], folder: str | None) -> Iterator[Block]:
    yield Heading(2, "Wrong")
    if not by_op:
        yield "Nothing."
        return
    yield (
        "Every finding was reproduced: its script runs DTensor on simulated ranks, in one process, and prints one "
        "element of the result and its correct value."
        + (
            " The scripts are on the page of each overload, with the row that would be right."
            if folder
            else ""
        )
    )
    designed = sum(w.designed for found in by_op.values() for w in found)
    if designed:
        yield f"No sample of torch shows {designed} of them, marked *: designed calls do."
    yield Table(
        ("overload", "row", "registered as", "DTensor", "correct"),
        [
            (_linked(w.op, folder), f"`{w.row}`" + _remarks(w), w.kind, *_printed(w))
            for found in by_op.values()
            for w in found
        ],
    )
    for op, found in by_op.items() if folder is None else ():
        yield Heading(3, op)
        for w in found:
            yield Script(f"{w.row}, from {w.call}", w.script, w.output)


def _linked(op: str, folder: str | None) -> str:
    return f"`{op}`" if folder is None else f"[`{op}`]({folder}/{op}.md)"


def _remarks(wrong: Wrong) -> str:
    return (f" ({wrong.when})" if wrong.when else "") + (" *" if wrong.designed else "")


def _printed(wrong: Wrong) -> tuple[str, str]:
    values = [line.split(":", 1)[1].strip() for line in wrong.output.splitlines() if ":" in line]
    return (values[0], values[1]) if len(values) == 2 else ("", "")


def _unsupported(audit: Audit) -> Iterator[Block]:
    yield Heading(2, "Unsupported")
    if not audit.unsupported:
        yield "Nothing."
    none = [u for u in audit.unsupported if u.no_strategy]
    if none:
        yield "DTensor has no strategy and raises. The rows are those found by experiment, except full replication."
        yield Table(
            ("overload", "call", "rows that hold"),
            [(f"`{u.op}`", f"`{u.call}`", _some(u.rows)) for u in none],
        )
    other = [u for u in audit.unsupported if not u.no_strategy]
    if other:
        yield "DTensor raises another error:"
        yield Table(("overload", "call", "error"), [(f"`{u.op}`", f"`{u.call}`", u.reason) for u in other])


def _missing(audit: Audit) -> Iterator[Block]:
    yield Heading(2, "Missing")
    if not audit.missing:
        yield "Nothing."
        return
    yield (
        "Rows that hold, but for which DTensor communicates. Ranked by the bytes that each of 8 ranks sends for "
        "one call on a typical shape (4096; 2048 x 4096; 8 x 2048 x 4096; 8 x 32 x 2048 x 128)."
    )
    for title, partial in (("Inputs sharded or replicated", False), ("With partial inputs", True)):
        of_kind = _by_op([m for m in audit.missing if m.partial == partial])
        if not of_kind:
            continue
        yield Heading(3, title)
        yield Table(
            ("overload", "MB", "rows", "DTensor instead"),
            [
                (
                    f"`{op}`",
                    f"{max(m.bytes for m in found) / 1e6:.3g}",
                    _some([m.text for m in found]),
                    found[0].instead,
                )
                for op, found in of_kind.items()
            ],
        )


def _not_judged(audit: Audit) -> Iterator[Block]:
    verdicts: dict[str, set[str]] = defaultdict(set)
    for op, _, verdict in audit.not_judged:
        verdicts[verdict.split(":")[0]].add(op)
    if verdicts:
        yield Heading(2, "Not tested")
        yield "Overloads with calls that cannot be tested by experiment:"
        yield Table(
            ("why", "overloads"),
            [(why, ", ".join(f"`{op}`" for op in sorted(ops))) for why, ops in sorted(verdicts.items())],
        )


def _beside(audit: Audit, other: Audit) -> Iterator[Block]:
    """What differs from the audit of another torch: its findings that are gone, those that are new, and strategies."""
    yield Heading(2, f"Since torch {other.torch}")
    here, there = ({(w.op, w.row): w for w in a.wrong} for a in (audit, other))
    audited, known = (dict(a.overloads) for a in (audit, other))
    gone = _by_op([w for key, w in there.items() if key not in here and w.op in audited])
    new = _by_op([w for key, w in here.items() if key not in there])
    yield (
        f"Wrong in both are {len(here.keys() & there.keys())} rows. {_rows_of(gone)} that were wrong in torch "
        f"{other.torch} are corrected, or raise; {_rows_of(new)} are new. The scripts of each were run in the other."
    )
    for title, found in (("Corrected", gone), ("New", new)):
        if found:
            yield Heading(3, title)
            yield Table(
                ("overload", "rows", f"in torch {other.torch}", f"in torch {audit.torch}"),
                [
                    (f"`{op}`", _some([w.row for w in of_op]), known.get(op, "not called"), audited[op])
                    for op, of_op in found.items()
                ],
            )
    lacked, lacks = (
        {u.op for u in a.unsupported if u.no_strategy and u.op in audited and u.op in known}
        for a in (other, audit)
    )
    strategies = (("has a strategy now", lacked - lacks), ("has none any more", lacks - lacked))
    rows = [(title, ", ".join(f"`{op}`" for op in sorted(ops))) for title, ops in strategies if ops]
    if rows:
        yield Heading(3, "Strategies")
        yield Table(("", "overloads"), rows)


def _rows_of(found: dict[str, list[Wrong]]) -> str:
    return f"{sum(map(len, found.values()))} rows of {len(found)} overloads"


def _some(rows: Sequence[str], most: int = 4) -> str:
    shown = "; ".join(f"`{row}`" for row in rows[:most])
    return shown + (f"; and {len(rows) - most} more" if len(rows) > most else "")


def _by_op(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.op, []).append(finding)
    return found
