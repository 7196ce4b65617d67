from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_start_page_says_what_happens(run_page, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_page(DOCS / "index.md") == 3


def test_the_page_on_architecture_says_what_happens(run_page):
    assert run_page(DOCS / "architecture.md") == 2
