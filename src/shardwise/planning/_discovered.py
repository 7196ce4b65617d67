"""Rows that experiments found for the calls of graphs, kept on disk, so that the next plan need not run them again."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..cache import Cache
from ..calls import Call, facts
from ..errors import UsageError
from ..experiments import Crash, Found, discover, run_isolated
from ..placements import Row

# Of discovery: what an older one found is not used.
_GENERATION = 3

# The rows of a call, or None if it could not be judged, and the verdict.
Judged = tuple[list[Row] | None, str]

# Rows by overload and call, found by this process.
_found_here: dict[tuple[Any, str], dict[str, Any]] = {}


def judged(call: Call) -> Judged | Crash:
    """What experiments find for a call, run in a process of their own."""
    return run_isolated(partial(_judged, call), timeout=120)


def _judged(call: Call) -> Judged:
    try:
        found: Found = discover(call.op, *call.args, **call.kwargs)
    except UsageError as error:  # the operator itself refuses the call
        return None, str(error)
    decided = found.verdict in ("rows", "no valid rows")
    return list(found.rows) if decided else None, found.reason or found.verdict


class Discovered:
    """Rows by call, in one JSON file per version of torch that several processes may add to.

    `find` runs the experiments; `here` are the rows that this process has found.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        find: Callable[[Call], Judged | Crash] = judged,
        here: dict[tuple[Any, str], dict[str, Any]] = _found_here,
    ) -> None:
        self.kept = Cache(f"rows-{{torch}}-{_GENERATION}", "discovered rows", folder)
        self.find, self.here = find, here

    def rows(self, call: Call) -> Judged:
        """The rows of a call, or None if it could not be judged; and the verdict."""
        text = str(call)
        entry = self.here.get((call.op, text)) or self.kept.get(text)
        if entry is None:
            found = self.find(call)
            rows, note = (None, f"discovery ended with {found}") if isinstance(found, Crash) else found
            entry = {"rows": rows and [row.to_json() for row in rows], "note": note}
            self.here[call.op, text] = entry
            # An operator that is not torch's may be changed by its author between two plans, so what was found about it
            # is forgotten when the process ends. A process that was slow or was stopped says nothing about the next.
            if facts(call.op).builtin and not isinstance(found, Crash):
                self.kept.keep({text: entry})
        return entry["rows"] and [Row.from_json(row) for row in entry["rows"]], entry["note"]
