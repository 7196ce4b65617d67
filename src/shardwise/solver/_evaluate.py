"""The cost and memory of one choice per node, in exact integers.

Deliberately shares no code with the search (plain Python integers, no reductions, no compiled code), so that a
solution is checked independently of the search's bugs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ._problem import FORBIDDEN, Problem


@dataclass(frozen=True)
class Evaluation:
    """`forbidden` is the first node or edge whose cost forbids the choice; memory peaks at `peak_time`."""

    cost: int
    peak: int
    peak_time: int | None
    fits: bool
    forbidden: str | None

    @property
    def feasible(self) -> bool:
        return self.fits and self.forbidden is None


def evaluate(problem: Problem, choices: Sequence[int]) -> Evaluation:
    """Cost and peak memory of one choice per node."""
    starts = problem.choice_start.tolist()
    if len(choices) != problem.nodes:
        raise UsageError(f"{len(choices)} choices for {problem.nodes} nodes: one per node is needed.")
    choices = [int(choice) for choice in choices]
    for node, choice in enumerate(choices):
        count = starts[node + 1] - starts[node]
        if not 0 <= choice < count:
            raise UsageError(f"choice {choice} of node {node}: its choices are 0 to {count - 1}.")
    cost, forbidden = 0, None
    for node, choice in enumerate(choices):
        value = int(problem.costs[starts[node] + choice])
        if value >= FORBIDDEN and forbidden is None:
            forbidden = f"choice {choice} of node {node}"
        cost += value
    for e, ((a, b), start) in enumerate(
        zip(problem.edges.tolist(), problem.table_start.tolist(), strict=False)
    ):
        value = int(problem.tables[start + choices[a] * (starts[b + 1] - starts[b]) + choices[b]])
        if value >= FORBIDDEN and forbidden is None:
            forbidden = f"choices {choices[a]} and {choices[b]} of nodes {a} and {b} (edge {e})"
        cost += value
    peak, peak_time = _peak(problem, choices, starts)
    return Evaluation(cost, peak, peak_time, peak <= problem.usage_limit, forbidden)


def _peak(problem: Problem, choices: Sequence[int], starts: list[int]) -> tuple[int, int | None]:
    change: dict[int, int] = {}
    for node, (start, end) in enumerate(problem.intervals.tolist()):
        if start < end:
            usage = int(problem.usages[starts[node] + choices[node]])
            change[start] = change.get(start, 0) + usage
            change[end] = change.get(end, 0) - usage
    load, peak, peak_time = 0, 0, None
    for time in sorted(change):
        load += change[time]
        if load > peak:
            peak, peak_time = load, time
    return peak, peak_time
