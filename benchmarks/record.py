"""The results of a benchmark: tables, printed as they fill, and written as JSON with `--json FILE`.

A record has the command, the date, torch's version and the numbers. `tables.py` renders the records under `results/` as
one page of documentation.
"""

import argparse
import datetime
import json
import os
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

Value = str | int | float | None


class Sheet:
    """One table. A column has a name and how its values are written: "{:.1f} s", "`{}`"; "" for words."""

    def __init__(self, record: "Record", title: str, columns: dict[str, str], wide: int) -> None:
        self.record, self.title, self.columns = record, title, columns
        self.rows: list[list[Value]] = []
        self.widths = [wide, *(max(9, len(name)) for name in list(columns)[1:])]
        print(f"\n{title}" if title else "")
        print(self._line(list(columns)), flush=True)

    def add(self, *values: Value) -> None:
        assert len(values) == len(self.columns)
        self.rows.append(list(values))
        print(self._line([cell.replace("`", "") for cell in self.cells(values)]), flush=True)
        self.record.save()

    def cells(self, values: tuple[Value, ...] | list[Value]) -> list[str]:
        return [written(*pair) for pair in zip(values, self.columns.values(), strict=True)]

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "columns": self.columns, "rows": self.rows}

    def _line(self, cells: list[str]) -> str:
        formats = self.columns.values()
        sides = [">" if is_number(form) else "<" for form in formats]
        return "  ".join(f"{c:{s}{w}}" for c, s, w in zip(cells, sides, self.widths, strict=True)).rstrip()


class Record:
    """The output of one run of a benchmark. `about` is the docstring of its file; its first line is the heading."""

    def __init__(self, about: str, path: Path | None) -> None:
        self.about = about.strip().splitlines()[0]
        self.path = path
        self.sheets: list[Sheet] = []
        self.lines: list[str] = []

    def sheet(self, title: str, columns: dict[str, str], wide: int = 12) -> Sheet:
        """A new table; its first column is printed `wide` characters wide."""
        self.sheets.append(Sheet(self, title, columns, wide))
        return self.sheets[-1]

    def say(self, line: str) -> None:
        """A sentence that belongs to the numbers."""
        print(line, flush=True)
        self.lines.append(line)
        self.save()

    def save(self) -> None:
        """Written after every line, so that a run that is interrupted keeps what it has measured."""
        if self.path is None:
            return
        document = {
            "about": self.about,
            "command": _command(),
            "date": datetime.date.today().isoformat(),
            "torch": version("torch"),
            "cores": os.cpu_count(),
            "sheets": [sheet.to_json() for sheet in self.sheets],
            "lines": self.lines,
        }
        self.path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def takes_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")


def written(value: Value, form: str) -> str:
    if value is None:
        return ""
    if not form or (is_number(form) and isinstance(value, str)):
        return str(value)
    return form.format(value)


def is_number(form: str) -> bool:
    return ":" in form


def _command() -> str:
    """The command line without `--json FILE`."""
    words = sys.argv[1:]
    if "--json" in words:
        place = words.index("--json")
        words = words[:place] + words[place + 2 :]
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])
