"""Positions of a dim as ascending ranges (start, stop), stop excluded."""

from collections.abc import Sequence

Run = tuple[int, int]  # the positions from start up to, not including, stop


def length(runs: Sequence[Run]) -> int:
    return sum(stop - start for start, stop in runs)


def common(some: Sequence[Run], others: Sequence[Run]) -> list[Run]:
    """The positions in both."""
    pairs = ((max(a, c), min(b, d)) for a, b in some for c, d in others)
    return [(start, stop) for start, stop in pairs if start < stop]


def between(runs: Sequence[Run], begin: int, end: int) -> list[Run]:
    """The positions with index begin up to, not including, end."""
    part, passed = [], 0
    for start, stop in runs:
        first, last = max(start, start + begin - passed), min(stop, start + end - passed)
        if first < last:
            part.append((first, last))
        passed += stop - start
    return part
