from pathlib import Path


def test_the_page_on_the_book_says_what_happens(run_page):
    assert run_page(Path(__file__).parents[2] / "docs" / "book.md") >= 4
