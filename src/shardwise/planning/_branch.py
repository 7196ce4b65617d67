"""Best-first branch and bound, for what a plan turns out to cost beyond what the problem knew of it.

A box is the problem with some of its choices forbidden. Its solution bounds all plans in the box, and stands for one of
them, which may be worse than the bound. Whoever evaluates the plan then names nodes of which every better plan has one
with another choice; the box without that plan is split by the first of them that differs. The parts do not overlap, so
no plan is met twice, and where all have been closed the best plan that was met is the best there is.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from ..solver import FORBIDDEN, Problem


@dataclass(frozen=True)
class Met:
    """The solution of a box and its plan. No plan in the box is below `bound`; the plan itself has `value` (infinite
    if it is none that is looked for). Every better one differs in the choice of some of the `nodes`, if those are
    known. `rank` decides which box is split next, the smallest first."""

    bound: float
    value: float
    choices: Sequence[int]
    nodes: Sequence[int] | None
    rank: float


@dataclass(frozen=True)
class Unmet:
    """A box of which only a bound is known."""

    bound: float


Look = Callable[[Problem, float], "Met | Unmet | None"]


def branch(
    problem: Problem,
    first: Met,
    look: Look,
    *,
    best: float = math.inf,
    gap: float = 0.0,
    most: int,
    over: Callable[[], bool],
) -> float:
    """A bound of all plans, if there is none infinity; within `gap` of the best plan that was met unless time is `over`
    or `most` boxes were looked into.

    `look` is given a box and a bound of it, and returns None for one that is empty. `best` is the value of a plan that
    is known.
    """
    waiting: list[tuple[float, int, Met, np.ndarray]] = []
    closed = math.inf  # the smallest bound of boxes that are not split any further
    tried = 0

    def add(met: Met, allowed: np.ndarray) -> None:
        nonlocal best, closed
        best = min(best, met.value)
        if met.nodes is None:
            closed = min(closed, met.bound)
        else:
            heappush(waiting, (met.rank, tried, met, allowed))

    add(first, problem.costs < FORBIDDEN)
    while waiting:
        _, _, met, allowed = heappop(waiting)
        for part in _parts(problem, met, allowed):
            if met.bound >= best * (1 - gap):
                closed = min(closed, met.bound)
                break
            if tried == most or over():
                return min(best, closed, met.bound, *(other.bound for _, _, other, _ in waiting))
            tried += 1
            found = look(replace(problem, costs=np.where(part, problem.costs, FORBIDDEN)), met.bound)
            if isinstance(found, Unmet):
                closed = min(closed, max(found.bound, met.bound))
            elif found is not None:
                add(replace(found, bound=max(found.bound, met.bound)), part)
    return min(best, closed)


def _parts(problem: Problem, met: Met, allowed: np.ndarray) -> Iterator[np.ndarray]:
    """The box without a plan, split by the first of the nodes with another choice."""
    assert met.nodes is not None
    allowed = allowed.copy()
    for node in met.nodes:
        own = slice(problem.choice_start[node], problem.choice_start[node + 1])
        chosen = problem.choice_start[node] + met.choices[node]
        if allowed[own].sum() > 1:
            part = allowed.copy()
            part[chosen] = False
            yield part
            allowed[own] = False
            allowed[chosen] = True
