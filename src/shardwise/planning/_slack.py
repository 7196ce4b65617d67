"""A move that may run beside calls, or several that run as one."""

from dataclasses import dataclass
from functools import cached_property

from ._schedule import Move


@dataclass(frozen=True, eq=False)
class Slack:
    """Moves that stand before a call or after one and may run beside others: one, or the small ones of a bucket.

    Each stage is one collective: a move, or one for each of a bucket. Places are numbers of entries, before which
    something is done: `at` has a move in the plain schedule; from `release` on it can begin, and at `need` it must have
    ended. `kept` are the bytes of its source that are held as long as the first stage is under way, `between` and
    `whole` those of the targets of all stages but the last, and of all. What a program makes and uses itself is not
    `limited`: it cannot be under way for long.

    One that `follows` moves what another one brings, which is waited for at its release.

    The moves of a bucket have `places` of their own; it is at that of the first, or of the last if it is late.
    """

    at: int
    release: int
    need: int
    moves: tuple[Move, ...]
    stages: tuple[tuple[Move, ...], ...]
    kept: int
    between: int
    whole: int
    limited: bool
    places: tuple[int, ...]
    follows: bool = False

    @cached_property
    def is_late(self) -> bool:
        """Whether it begins where it stands and is waited for later, rather than begun earlier."""
        return self.release == self.at

    @cached_property
    def size(self) -> int:
        """The bytes that count as under way."""
        return self.largest if self.limited else 0

    @cached_property
    def largest(self) -> int:
        """The bytes of the largest collective."""
        return max(sum(move.change.collectives[0].size for move in stage) for stage in self.stages)

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Those of each stage."""
        return tuple(sum(move.change.price for move in stage) for stage in self.stages)
