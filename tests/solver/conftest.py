"""Random small problems and the plain way to solve them: look at every choice."""

import itertools
import random

import pytest

from shardwise.solver import FORBIDDEN, Problem, evaluate, prepare


@pytest.fixture(autouse=True, scope="session")
def compiled():
    """Compiling, on the first run on a machine, counts towards no test's time limit."""
    prepare()


def random_problem(seed: int, *, nodes: int = 7, choices: int = 4) -> Problem:
    """Random shape: parallel edges, loops, equalities, forbidden pairs, tight or loose memory."""
    r = random.Random(seed)
    n = r.randint(1, nodes)
    k = [r.choice([1, 2, 3, choices]) for _ in range(n)]
    span = r.choice([1, 3, 8])
    scale = r.choice([3, 10, 1000])

    def cost(forbidden: float) -> int:
        return FORBIDDEN if r.random() < forbidden else r.randint(0, scale)

    intervals = []
    for _ in range(n):
        start = r.randrange(span)
        intervals.append([start, r.randint(start, span)])
    edges, tables = [], []
    for _ in range(r.randint(0, 2 * n)):
        a, b = r.randrange(n), r.randrange(n)
        kind = r.random()
        if kind < 0.2:
            table = [0 if i % k[b] == j else FORBIDDEN for i in range(k[a]) for j in range(k[b])]
        elif kind < 0.3:
            table = [3 * i + 2 * j for i in range(k[a]) for j in range(k[b])]
        else:
            forbidden = r.choice([0, 0, 0.2, 0.5])
            table = [cost(forbidden) for _ in range(k[a] * k[b])]
        edges.append([a, b])
        tables.append(table)
    usages = [[r.randint(0, 9) for _ in range(c)] for c in k]
    most = sum(max(u) for u in usages)
    return Problem.build(
        costs=[[cost(r.choice([0, 0, 0.1])) for _ in range(c)] for c in k],
        usages=usages,
        intervals=intervals,
        edges=edges,
        tables=tables,
        usage_limit=r.randint(most // 4, max(1, most)),
        name=f"random {seed}",
    )


def brute_force(problem: Problem) -> int | None:
    """The optimal cost, None if nothing is feasible."""
    sizes = (problem.choice_start[1:] - problem.choice_start[:-1]).tolist()
    best = None
    for choice in itertools.product(*(range(k) for k in sizes)):
        result = evaluate(problem, choice)
        if result.feasible and (best is None or result.cost < best):
            best = result.cost
    return best


def layered_problem(count: int, *, seed: int = 0, limit: float = 0.5) -> Problem:
    """A stack of layers like a model's: equalities, resharding tables, a hub, memory that binds."""
    r = random.Random(seed)
    costs, usages, intervals, edges, tables = [[3, 0, 1, 2]], [[8, 4, 2, 1]], [[0, 2 * count]], [], []
    for n in range(1, count):
        k = r.choice([2, 3, 4, 6])
        costs.append([r.randint(0, 60) for _ in range(k)])
        usages.append([r.randint(1, 40) for _ in range(k)])
        intervals.append([n, n + r.randint(1, 12)])
        for other in {n - 1, max(0, n - r.randint(2, 9)), 0} if n % 5 == 0 else {n - 1, max(0, n - 4)}:
            edges.append([other, n])
            tables.append(
                [FORBIDDEN if r.random() < 0.1 else r.randint(0, 90) for _ in range(len(costs[other]) * k)]
            )
    low = Problem.build(costs=costs, usages=usages, intervals=intervals)
    least = evaluate(low, [u.index(min(u)) for u in usages]).peak
    most = evaluate(low, [u.index(max(u)) for u in usages]).peak
    return Problem.build(
        costs=costs,
        usages=usages,
        intervals=intervals,
        edges=edges,
        tables=tables,
        usage_limit=int(least + limit * (most - least)),
    )


@pytest.fixture
def layers():
    return layered_problem


@pytest.fixture
def make_problem():
    return random_problem


@pytest.fixture
def by_brute_force():
    return brute_force
