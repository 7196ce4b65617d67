import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_start_page_says_what_happens(run_page, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_page(DOCS / "index.md") == 3


def test_the_page_on_architecture_says_what_happens(run_page):
    assert run_page(DOCS / "architecture.md") == 2


def test_the_essay_runs_and_agrees_with_the_library(capsys):
    runpy.run_path(str(DOCS / "from_scratch.py"))
    printed = capsys.readouterr().out
    assert "5 rows of mm" in printed
    assert "layer 2: dp: S(0), R -> S(0); tp: S(1), S(0) -> P(sum)" in printed
