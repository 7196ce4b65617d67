"""One book for several versions of torch: what is shipped is about one of them, with an overlay for others.

An overlay is a folder in the book's, named after its torch: operators that came, went or changed since the version that
the book is about. All other rules were tested again there and stand. A torch between two known ones has the rules of
the older; where the newer has the same, they stand on both.
"""

import warnings
from pathlib import Path

from ._book import Book


def edition(folder: Path, running: str) -> Book:
    """The book in a folder as it is for a version of torch; for one that is not between known ones there is a
    warning."""
    known = editions(folder)
    versions = sorted(known, key=_release)
    older = [version for version in versions if _release(version) <= _release(running)]
    if running not in known and (not older or older[-1] == versions[-1]):
        warnings.warn(
            f"the rule book knows torch {', '.join(versions)}, but this is torch {running}: its rules are used as they "
            f"are; `shardwise book build --out DIR` tests them, and SHARDWISE_BOOK=DIR uses what that finds",
            stacklevel=3,
        )
    return known[older[-1] if older else versions[0]]


def editions(folder: Path) -> dict[str, Book]:
    """The editions of the book in a folder, by version of torch."""
    base = Book(folder)
    overlays = (Book(path.parent, base) for path in folder.glob("*/index.yaml"))
    return {book.torch: book for book in (base, *overlays)}


def stands_on(folder: Path, op: str, running: str) -> list[str]:
    """The versions of torch on which the entry of an operator was tested, of those next to the running one."""
    known = editions(folder)
    versions = sorted(known, key=_release)
    older = [version for version in versions if _release(version) <= _release(running)] or versions[:1]
    newer = [version for version in versions if _release(version) >= _release(running)] or versions[-1:]
    chosen = known[older[-1]]
    beside = {known[version].torch: known[version] for version in (older[-1], newer[0])}
    tested = {chosen.source(op).torch}
    tested |= {
        v for v, book in beside.items() if book.source(op) is chosen.source(op) and book.has_tested(op)
    }
    return sorted(tested, key=_release)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit())
