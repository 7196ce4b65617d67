"""One book for several versions of torch: what is shipped is about one of them, with an overlay for others.

An overlay is a folder in the book's, named after its torch: operators that came, went or changed since the version that
the book is about. All other rules were tested again there and stand. A torch between two known ones has the rules of
the older; where the newer has the same, they stand on both.
"""

import warnings
from collections.abc import Iterable
from pathlib import Path

from ._book import Book

SHIPPED = Path(__file__).parent / "book"


def edition(folder: Path, running: str) -> Book:
    """The book in a folder as it is for a version of torch; for one that is not between known ones there is a
    warning."""
    known = editions(folder)
    older, newer = next_to(known, running)
    if is_beyond(running, older, newer):
        versions = ", ".join(sorted(known, key=_release))
        warnings.warn(
            f"the rule book knows torch {versions}, but this is torch {running}: its rules are used as they "
            f"are; `shardwise book build --out DIR` tests them, and SHARDWISE_BOOK=DIR uses what that finds",
            stacklevel=3,
        )
    return known[older]


def editions(folder: Path) -> dict[str, Book]:
    """The editions of the book in a folder, by version of torch."""
    own = opened(folder)
    overlays = (Book(path.parent, own) for path in folder.glob("*/index.yaml"))
    return {book.torch: book for book in (own, *overlays)}


def opened(folder: Path) -> Book:
    """The book in a folder: a whole one, or the shipped one with the differences that the folder has."""
    own = Book(folder)
    return Book(folder, Book(SHIPPED)) if own.is_overlay else own


def stands_on(folder: Path, op: str, running: str) -> list[str]:
    """The versions of torch on which the entry that the running one has of an operator was tested."""
    known = editions(folder)
    source = known[next_to(known, running)[0]].source(op)
    tested = {v for v, book in known.items() if book.source(op) is source and book.has_tested(op)}
    return sorted(tested | {source.torch}, key=_release)


def next_to(versions: Iterable[str], running: str) -> tuple[str, str]:
    """The newest of the versions that is not above the running one and the oldest that is not below it; beyond all of
    them, the nearest."""
    ordered = sorted(versions, key=_release)
    older = [version for version in ordered if _release(version) <= _release(running)]
    newer = [version for version in ordered if _release(version) >= _release(running)]
    return (older or ordered)[-1 if older else 0], (newer or ordered)[0 if newer else -1]


def is_beyond(running: str, older: str, newer: str) -> bool:
    """Whether a version is not between two, whatever corrections (2.15.1 of 2.15) each has."""
    return not _release(older)[:2] <= _release(running)[:2] <= _release(newer)[:2]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit())
