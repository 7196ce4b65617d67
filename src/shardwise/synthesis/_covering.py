"""Covering arrays: few rows in which every combination of levels of any few columns occurs.

Arguments that always change together cannot be distinguished, so the calls of a sweep are designed: every pair of
levels of any two columns occurs in some call, every triple where that stays small. Not every combination is a call;
those that turn out not to run are left out, and what could not be covered is counted.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

# One level per column, by its place in the column.
Levels = tuple[int, ...]
# Columns with the level of each: what shall occur together.
Tuple = tuple[tuple[int, int], ...]

# Random completions of a combination among which the one that covers most is taken, and for each attempt at one that is
# accepted, the share of columns that stay at their first level, which is that of a known call.
_COMPLETIONS, _ATTEMPTS = 12, (0.0, 0.25, 0.5, 0.75, 1.0, 0.0, 0.0)


@dataclass
class Covering:
    """What a design covers: how many combinations there are, and those that no row with them could be found for."""

    total: int = 0
    impossible: int = 0


def tuples(sizes: Sequence[int], strength: int) -> Iterator[Tuple]:
    """Every combination of levels of `strength` columns; `sizes` are the numbers of levels."""
    for columns in itertools.combinations(range(len(sizes)), strength):
        for levels in itertools.product(*(range(sizes[c]) for c in columns)):
            yield tuple(zip(columns, levels, strict=True))


def covering_rows(
    sizes: Sequence[int],
    strength: int,
    accepts: Callable[[Levels], bool],
    most: int,
    seed: int = 0,
    covering: Covering | None = None,
    covered: Sequence[Levels] = (),
) -> Iterator[Levels]:
    """Rows of one level per column, up to `most`, until every combination of `strength` levels occurs in one that is
    accepted. `accepts` says whether a row is possible; `covered` are rows that are there already."""
    choose = random.Random(seed)
    strength = min(strength, len(sizes))
    waiting = dict.fromkeys(tuples(sizes, strength))
    covering = covering if covering is not None else Covering()
    covering.total = len(waiting)
    for row in covered:
        _remove(waiting, row, strength)
    refused: set[Levels] = set()
    missed: set[Tuple] = set()
    while waiting and most > 0:
        wanted = next(iter(waiting))
        accepted = _accepted_row(sizes, wanted, waiting, strength, accepts, choose, refused)
        if accepted is None:
            del waiting[wanted]
            missed.add(wanted)
            covering.impossible = len(missed)
            continue
        _remove(waiting, accepted, strength)
        missed.difference_update(_tuples_of(accepted, strength))
        covering.impossible = len(missed)
        most -= 1
        yield accepted


def _accepted_row(
    sizes: Sequence[int],
    wanted: Tuple,
    waiting: dict[Tuple, None],
    strength: int,
    accepts: Callable[[Levels], bool],
    choose: random.Random,
    refused: set[Levels],
) -> Levels | None:
    """An accepted row with the wanted combination that covers many others, too."""
    for rest in _ATTEMPTS:
        candidates = {_completed(sizes, wanted, rest, choose) for _ in range(_COMPLETIONS)} - refused
        if not candidates:
            continue
        row = max(sorted(candidates), key=lambda r: sum(t in waiting for t in _tuples_of(r, strength)))
        if accepts(row):
            return row
        refused.add(row)
    return None


def _completed(sizes: Sequence[int], wanted: Tuple, rest: float, choose: random.Random) -> Levels:
    row = [0 if choose.random() < rest else choose.randrange(size) for size in sizes]
    for column, level in wanted:
        row[column] = level
    return tuple(row)


def _tuples_of(row: Levels, strength: int) -> Iterator[Tuple]:
    return itertools.combinations(enumerate(row), strength)


def _remove(waiting: dict[Tuple, None], row: Levels, strength: int) -> None:
    for combination in _tuples_of(row, strength):
        waiting.pop(combination, None)
