"""docs/results.md is what benchmarks/tables.py draws from the numbers that are kept."""

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("tables")


@pytest.fixture
def record(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("record")


def test_the_page_has_the_numbers_that_are_kept(tables):
    assert tables.PAGE.read_text() == tables.page(), "run `make results`"


def test_every_record_has_its_place_on_the_page(tables):
    placed = {name for _, names, _ in tables.SECTIONS for name in names}
    kept = {p.stem for p in tables.RESULTS.glob("*.json") if "sheets" in json.loads(p.read_text())}
    assert kept <= placed


def test_a_record_keeps_what_was_printed(record, monkeypatch, tmp_path, capsys):
    kept = tmp_path / "kept.json"
    monkeypatch.setattr("sys.argv", ["somewhere/mine.py", "--json", str(kept), "--quick"])
    made = record.Record("What is measured.\n\nMore of it.", kept)
    table = made.sheet("A title", {"op": "`{}`", "seconds": "{:.1f} s", "share": "{:.0%}"})
    table.add("mm", 1.25, None)
    made.say("It was quick.")
    document = json.loads(kept.read_text())
    assert document["command"] == "python benchmarks/mine.py --quick"
    assert document["about"] == "What is measured."
    assert document["sheets"][0]["rows"] == [["mm", 1.25, None]]
    printed = capsys.readouterr().out
    assert "mm" in printed and "1.2 s" in printed and "`" not in printed and "It was quick." in printed


def test_a_record_is_drawn_as_markdown(tables):
    sheet = {"title": "", "columns": {"op": "`{}`", "calls": "{:,}"}, "rows": [["a|b", 1200], ["c", None]]}
    assert tables.table(sheet).splitlines() == [
        "| op | calls |",
        "| --- | ---: |",
        "| `a\\|b` | 1,200 |",
        "| `c` |  |",
    ]
