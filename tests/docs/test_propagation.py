"""docs/propagation.md: each block of code is run, and prints what the block after it says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "propagation.md"


def test_every_block_prints_what_the_page_says(run_page):
    assert run_page(PAGE) > 10


@pytest.mark.parametrize("word", ["matmul", "transformer block", "conflict"])
def test_the_page_works_through(word):
    assert re.search(rf"^## A {word}", PAGE.read_text(), re.MULTILINE)
