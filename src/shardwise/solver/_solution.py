"""What a search returns: the solution, the log of its improvements and, without one, what is lacking."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shortfall:
    """Below the limit `at_least` nothing fits; `enough` is one that is known to do, None if none is.

    They are equal when the smallest feasible limit is known. `interval` is the half-open time interval
    where it binds. If `forbidden`, no limit helps: the forbidden choices and pairs alone leave no solution.
    """

    at_least: int | None
    enough: int | None
    interval: tuple[int, int] | None
    forbidden: bool = False

    def __str__(self) -> str:
        if self.forbidden:
            return "the forbidden choices and pairs leave no solution, whatever the memory limit"
        where = "" if self.interval is None else f", binding in [{self.interval[0]}, {self.interval[1]})"
        if self.at_least == self.enough:
            return f"the smallest feasible limit is {self.enough}{where}"
        known = "" if self.enough is None else f" and {self.enough} is enough"
        return f"the smallest feasible limit is at least {self.at_least}{known}{where}"


@dataclass(frozen=True)
class Improvement:
    """One line of the log: seconds since the call, best cost (None without one), lower bound, peak memory."""

    seconds: float
    cost: int | None
    bound: int | None
    peak: int | None

    @property
    def gap(self) -> float | None:
        return gap_of(self.cost, self.bound)


@dataclass(frozen=True)
class Solution:
    """What was found.

    `status` is `optimal` (proven), `feasible`, `infeasible` (proven) or `unknown` (time ran out before either
    a solution or a proof). `choices` holds one integer per node; it, `cost` and `peak` are None without a
    solution. `bound` is a lower bound on the cost of every solution, `shortfall` says what an infeasible
    problem lacks, `reason` why nothing is known.
    """

    status: str
    choices: list[int] | None
    cost: int | None
    bound: int | None
    peak: int | None
    seconds: float
    log: tuple[Improvement, ...] = field(default=(), repr=False)
    shortfall: Shortfall | None = None
    reason: str | None = None

    @property
    def gap(self) -> float | None:
        """(cost - bound) / cost, None where either is missing."""
        return gap_of(self.cost, self.bound)

    def __str__(self) -> str:
        if self.choices is None:
            return f"{self.status}: {self.shortfall or 'no solution was found in the time given'}"
        bound = "none" if self.bound is None else f"{self.bound:,} (gap {self.gap:.3%})"
        return f"{self.status}: cost {self.cost:,}, bound {bound}, peak memory {self.peak:,}"

    def __repr__(self) -> str:
        return f"<Solution {self}>"


def gap_of(cost: int | None, bound: int | None) -> float | None:
    if cost is None or bound is None:
        return None
    return (cost - bound) / max(1, abs(cost))
