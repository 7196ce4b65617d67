"""The shortfall of an infeasible problem: the smallest feasible memory limit, and where it is binding.

Without costs only forbidden pairs and memory matter, so the smallest limit is found by bisection: a limit either has
a solution, whose peak is a smaller feasible limit, or is proven to have none.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ._evaluate import evaluate
from ._problem import FORBIDDEN, Problem
from ._solution import Shortfall, Solution

_UNLIMITED = 2**63 - 1


def shortfall(
    problem: Problem, low: int, deadline: float, solve: Callable[[Problem, float], Solution]
) -> Shortfall:
    """How much memory a problem needs, if `low` or more, as precisely as the time until `deadline` allows.

    `solve` takes a problem and a deadline.
    """
    free = replace(
        problem,
        costs=np.where(problem.costs >= FORBIDDEN, FORBIDDEN, 0),
        tables=np.where(problem.tables >= FORBIDDEN, FORBIDDEN, 0),
        usage_limit=_UNLIMITED,
    )
    first = solve(free, deadline)
    if first.status == "infeasible":
        return Shortfall(None, None, None, forbidden=True)
    unit = max(1, int(np.gcd.reduce(problem.usages, initial=0)))  # every load is a multiple of it
    low = _up(max(low, smallest_load(problem)[0]), unit)
    if first.choices is None:
        return Shortfall(low, None, None)
    best = first.choices
    high = evaluate(free, best).peak
    middle = low  # often tight, so it is tested first
    while low < high and time.monotonic() < deadline:
        attempt = solve(replace(free, usage_limit=middle), deadline)
        if attempt.status == "infeasible":
            low = _up(middle + 1, unit)
        elif attempt.choices is not None:
            best = attempt.choices
            high = evaluate(free, best).peak
        else:
            break
        middle = _up((low + high - unit) // 2, unit)
    return Shortfall(low, high, _peak_interval(problem, best), choices=best)


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def smallest_load(problem: Problem) -> tuple[int, int | None]:
    """The largest load over time if every node has its smallest usage, and its time."""
    smallest = [
        int(np.argmin(problem.usages[problem.choice_start[n] : problem.choice_start[n + 1]]))
        for n in range(problem.nodes)
    ]
    checked = evaluate(problem, smallest)
    return checked.peak, checked.peak_time


def _peak_interval(problem: Problem, choices: list[int]) -> tuple[int, int] | None:
    start = evaluate(problem, choices).peak_time
    if start is None:
        return None
    later = problem.intervals[problem.intervals[:, 0] < problem.intervals[:, 1]].reshape(-1)
    return start, int(later[later > start].min())
