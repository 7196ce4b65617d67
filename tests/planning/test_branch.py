"""Branching finds the best of all plans, whatever the problem does not know of them."""

import itertools
import math
import random

import pytest

from shardwise.planning._branch import Met, branch
from shardwise.solver import FORBIDDEN, Problem, evaluate, solve


def drawn(seed: int) -> tuple[Problem, dict[tuple[int, ...], float]]:
    """A problem, and what each choice of all nodes really costs: more than the problem knows, if two nodes agree."""
    r = random.Random(seed)
    sizes = [r.choice([1, 2, 3]) for _ in range(4)]
    edges = [(a, b) for a, b in itertools.combinations(range(4), 2) if r.random() < 0.5]
    problem = Problem.build(
        costs=[[r.randint(0, 9) for _ in range(size)] for size in sizes],
        usages=[[0] * size for size in sizes],
        intervals=[[0, 0]] * 4,
        edges=edges,
        tables=[
            [FORBIDDEN if r.random() < 0.2 else r.randint(0, 9) for _ in range(sizes[a] * sizes[b])]
            for a, b in edges
        ],
        usage_limit=0,
    )
    values = {}
    for choices in itertools.product(*map(range, sizes)):
        checked = evaluate(problem, choices)
        if checked.feasible:
            more = r.choice([5, math.inf]) if choices[0] == choices[2] else 0
            values[choices] = checked.cost + more
    return problem, values


def branched(problem: Problem, values: dict[tuple[int, ...], float], most: int) -> tuple[float, float]:
    """The bound, and the best value that was met."""
    met = []

    def look(box: Problem, bound: float = 0.0) -> Met | None:
        solution = solve(box, explain=False)
        if solution.choices is None:
            return None
        value = values[tuple(solution.choices)]
        met.append(value)
        # Where two nodes agree, a plan that fits has another choice of them; a cheaper one may differ anywhere.
        nodes = [0, 2] if value == math.inf else [0, 1, 2, 3] if value > solution.cost else None
        return Met(solution.cost, value, solution.choices, nodes, solution.cost)

    first = look(problem)
    if first is None:
        return math.inf, math.inf
    return branch(problem, first, look, most=most, over=lambda: False), min(met)


@pytest.mark.parametrize("seed", range(40))
def test_the_best_is_found_or_proven_not_to_be(seed):
    problem, values = drawn(seed)
    best = min(values.values(), default=math.inf)
    assert branched(problem, values, most=1_000) == (best, best)


@pytest.mark.parametrize("seed", range(40))
def test_where_it_stops_early_the_bound_is_one(seed):
    problem, values = drawn(seed)
    bound, met = branched(problem, values, most=1)
    assert bound <= min(values.values(), default=math.inf) <= met
