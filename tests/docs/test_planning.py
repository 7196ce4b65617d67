"""docs/planning.md: each block of code is run, and prints what the block after it says."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"


def test_every_block_prints_what_the_page_says(run_page):
    assert run_page(PAGE) == 5
