"""The result of a search: the solution, the log of improvements and, for infeasible problems, the shortfall."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shortfall:
    """No limit below `at_least` is feasible; `enough` is a limit that is known to be feasible, or None.

    They are equal when the smallest feasible limit is known. `interval` is the half-open time interval where it is
    binding. If `forbidden`, no limit is feasible: the forbidden choices and pairs alone exclude all solutions.
    `choices` fit in `enough`.
    """

    at_least: int | None
    enough: int | None
    interval: tuple[int, int] | None
    forbidden: bool = False
    choices: list[int] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        if self.forbidden:
            return "the forbidden choices and pairs exclude every solution, for any memory limit"
        where = "" if self.interval is None else f", binding in [{self.interval[0]}, {self.interval[1]})"
        if self.at_least == self.enough:
            return f"the smallest feasible limit is {self.enough}{where}"
        known = "" if self.enough is None else f" and at most {self.enough}"
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
    """The result of a search.

    `status` is `optimal` (proven), `feasible`, `infeasible` (proven) or `unknown` (the time limit was reached before
    either a solution or a proof). `choices` has one integer per node; it, `cost` and `peak` are None without a
    solution. `bound` is a lower bound on the cost of every solution, `shortfall` the missing memory of an infeasible
    problem, `reason` why the status is unknown.
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
            return f"{self.status}: {self.shortfall or 'no solution was found within the time limit'}"
        bound = "none" if self.bound is None else f"{self.bound:,} (gap {self.gap:.3%})"
        return f"{self.status}: cost {self.cost:,}, bound {bound}, peak memory {self.peak:,}"

    def __repr__(self) -> str:
        return f"<Solution {self}>"


def gap_of(cost: int | None, bound: int | None) -> float | None:
    if cost is None or bound is None:
        return None
    return (cost - bound) / max(1, abs(cost))
