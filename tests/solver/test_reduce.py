"""The reductions keep the optimum, and a solution of the kernel is a solution of the problem."""

import itertools

import numpy as np
import pytest

from shardwise.solver import FORBIDDEN, Problem, evaluate, reduce


def _kernel_optimum(reduction) -> int | None:
    """The optimum over all solutions of the kernel, read back and judged in the problem itself."""
    if reduction.kernel is None:
        return None
    best = None
    for choice in itertools.product(*(range(k) for k in reduction.kernel.arrays.k)):
        result = evaluate(reduction.problem, reduction.expand(np.array(choice, np.int64)))
        if result.feasible and (best is None or result.cost < best):
            best = result.cost
    return best


@pytest.mark.parametrize("block", range(10))
def test_the_kernel_has_the_optimum_of_the_problem(block, make_problem, by_brute_force):
    for seed in range(100 * block, 100 * block + 100):
        problem = make_problem(seed, nodes=5)
        assert _kernel_optimum(reduce(problem)) == by_brute_force(problem), problem.name


def test_costs_of_the_kernel_are_costs_of_the_problem(make_problem):
    from shardwise.solver._pricing import cost_of

    compared = 0
    for seed in range(200):
        reduction = reduce(make_problem(seed))
        kernel = reduction.kernel
        if kernel is None:
            continue
        for choice in itertools.islice(itertools.product(*(range(k) for k in kernel.arrays.k)), 20):
            picked = np.array(choice, np.int64)
            result = evaluate(reduction.problem, reduction.expand(picked))
            if result.forbidden is None:
                assert cost_of(kernel.arrays, picked) + kernel.constant == result.cost
                compared += 1
    assert compared > 200


def test_a_solution_of_the_problem_restricts_to_the_kernel_and_back(make_problem):
    for seed in range(100):
        reduction = reduce(make_problem(seed))
        if reduction.kernel is not None:
            picked = np.array([k - 1 for k in reduction.kernel.arrays.k], np.int64)
            assert reduction.restrict(reduction.expand(picked)).tolist() == picked.tolist()


def test_a_chain_of_equalities_becomes_one_node():
    k = 5
    equal = [0 if i == j else FORBIDDEN for i in range(k) for j in range(k)]
    problem = Problem.build(
        costs=[[i * n % 7 for i in range(k)] for n in range(50)],
        usages=[list(range(k))] * 50,
        intervals=[[n, n + 10] for n in range(50)],
        edges=[[n, n + 1] for n in range(49)],
        tables=[equal] * 49,
        usage_limit=25,
    )
    reduction = reduce(problem)
    assert reduction.kernel is not None
    assert reduction.kernel.nodes <= 1
    assert reduction.counts["nodes merged into one that determines them"] == 49


def test_a_tree_without_memory_vanishes():
    problem = Problem.build(
        costs=[[n * i % 5 for i in range(3)] for n in range(40)],
        edges=[[n, (n - 1) // 2] for n in range(1, 40)],
        tables=[[(3 * i * j + n) % 11 for i in range(3) for j in range(3)] for n in range(1, 40)],
    )
    reduction = reduce(problem)
    assert reduction.kernel is not None and reduction.kernel.nodes == 0


def test_clashing_equalities_leave_nothing():
    equal, differ = [0, FORBIDDEN, FORBIDDEN, 0], [FORBIDDEN, 0, 0, FORBIDDEN]
    problem = Problem.build(costs=[[0, 0]] * 3, edges=[[0, 1], [1, 2], [0, 2]], tables=[equal, equal, differ])
    assert reduce(problem).kernel is None


def test_smallest_usages_above_the_limit_are_seen_with_their_time():
    problem = Problem.build(
        costs=[[0, 0], [0, 0]], usages=[[5, 6], [7, 8]], intervals=[[0, 10], [4, 6]], usage_limit=11
    )
    reduction = reduce(problem)
    assert reduction.kernel is None and reduction.overflow == 4


def test_flags_forbid_choices():
    problem = Problem.build(costs=[[1, 2, 3]])
    reduction = reduce(problem, allowed=np.array([False, True, True]))
    assert reduction.expand(np.zeros(0, np.int64)).tolist() == [1]
