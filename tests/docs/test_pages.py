"""Every page of docs/: its blocks of code run, and each prints what the block after it says."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [p.name for p in sorted(DOCS.glob("*.md")) if re.search(r"^```(python|bash)$", p.read_text(), re.M)]


# The scripts of audits do not share names: test_audit.py runs each on its own.
@pytest.mark.parametrize("page", [name for name in PAGES if not re.match(r"audit[._]", name)])
def test_a_page_says_what_happens(run_page, monkeypatch, page):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_page(DOCS / page)


@pytest.mark.parametrize("word", ["matmul", "transformer block", "conflict"])
def test_the_page_on_propagation_works_through(word):
    assert re.search(rf"^## A {word}", (DOCS / "propagation.md").read_text(), re.MULTILINE)
