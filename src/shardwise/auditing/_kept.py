"""What an audit found, on disk: a line per overload, written as soon as it is known.

An audit that was stopped goes on where it was, and audits of several versions of torch can be compared.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from ..documents import Field
from ..errors import UsageError
from ..files import named, parse_json, read_text, require_writable
from ._findings import Audit, CallFindings


class Kept:
    """The findings in a file, by overload; without a file they are forgotten with the process."""

    def __init__(self, path: Path | None, torch: str, samples: int, designed: int) -> None:
        self.path = path
        self.found: dict[str, list[CallFindings]] = {}
        head = {"torch": torch, "samples": samples, "designed": designed}
        if path is None:
            return
        require_writable(path)
        lines = _whole_lines(path) if path.exists() else []
        if lines and parse_json(lines[0]) != head:
            raise UsageError(
                f"{path} has another audit, {lines[0]}: expected {json.dumps(head)}, or a new file"
            )
        self.found = _read(path, lines)
        path.write_text("".join(f"{line}\n" for line in (lines or [json.dumps(head)])))

    def keep(self, op: str, findings: Sequence[CallFindings]) -> None:
        self.found.setdefault(op, []).extend(findings)
        if self.path is not None and findings:
            line = {"op": op, "calls": [f.to_document() for f in findings]}
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def read_audit(path: Path) -> Audit:
    """The audit that is kept in a file."""
    lines = _whole_lines(path)
    with named(path):
        head = Field(parse_json(lines[0] if lines else "")).object(("torch", "samples", "designed"))
        version = head["torch"].text()
    return Audit.of(version, [call for calls in _read(path, lines).values() for call in calls])


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file, without one that was half written when an audit was stopped."""
    return read_text(path).split("\n")[:-1]


def _read(path: Path, lines: Sequence[str]) -> dict[str, list[CallFindings]]:
    found: dict[str, list[CallFindings]] = {}
    with named(path):
        for number, line in enumerate(lines[1:], 2):
            fields = Field(parse_json(line), f"line {number}").object(("op", "calls"))
            calls = [CallFindings.from_document(call) for call in fields["calls"].items()]
            found.setdefault(fields["op"].text(), []).extend(calls)
    return found
