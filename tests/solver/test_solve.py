"""The search finds the optimum of small problems, says what is infeasible, and can be repeated."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import UsageError
from shardwise.solver import FORBIDDEN, Problem, evaluate


@pytest.mark.parametrize("block", range(20))
def test_small_problems_are_solved_as_by_brute_force(block, make_problem, by_brute_force):
    for seed in range(100 * block, 100 * block + 100):
        problem = make_problem(seed, nodes=5)
        best = by_brute_force(problem)
        solution = sw.solve(problem, time_limit=60, seed=seed)
        if best is None:
            assert solution.status == "infeasible", problem.name
        else:
            assert (solution.status, solution.cost, solution.bound) == ("optimal", best, best), problem.name
            assert evaluate(problem, solution.choices).feasible


@pytest.mark.parametrize("seed", range(3))
def test_the_search_ends_where_only_rounding_is_between_cost_and_bound(seed, layers):
    """Costs beyond 10^10 differ from their bound by more than the last whole number."""
    problem, factor = layers(30, seed=seed, limit=0.4), 10**9 + 7
    costs, tables = (
        np.where(given < FORBIDDEN, given * factor, FORBIDDEN) for given in (problem.costs, problem.tables)
    )
    small = sw.solve(problem, time_limit=60)
    large = sw.solve(replace(problem, costs=costs, tables=tables), time_limit=600)
    assert small.status == "optimal" and large.cost == small.cost * factor
    assert large.cost - large.bound <= 1e-6 + 1e-10 * large.cost
    assert large.seconds < 300  # half of its limit: it did not wait for what cannot be proven


def test_what_is_lacking_is_the_smallest_feasible_limit(make_problem, by_brute_force):
    seen = 0
    for seed in range(3000, 3250):
        problem = make_problem(seed, nodes=5)
        if by_brute_force(problem) is not None:
            continue
        lacking = sw.solve(problem, time_limit=60).shortfall
        if lacking.forbidden:
            assert by_brute_force(replace(problem, usage_limit=2**60)) is None
            continue
        seen += 1
        assert lacking.at_least == lacking.enough > problem.usage_limit
        assert by_brute_force(replace(problem, usage_limit=lacking.enough)) is not None
        assert by_brute_force(replace(problem, usage_limit=lacking.enough - 1)) is None
        start, end = lacking.interval
        assert start < end
    assert seen > 20


def test_a_run_of_given_rounds_can_be_repeated(layers):
    problem = layers(60)
    first, second = (sw.solve(problem, max_iterations=6, seed=3) for _ in range(2))
    assert first.choices == second.choices
    assert (first.cost, first.bound, first.status) == (second.cost, second.bound, second.status)


def test_the_log_improves_and_the_bound_holds(layers):
    lines = []
    problem = layers(60, seed=1)
    solution = sw.solve(problem, max_iterations=12, progress=lines.append)
    assert tuple(lines) == solution.log
    costs = [line.cost for line in lines if line.cost is not None]
    assert costs == sorted(costs, reverse=True)
    bounds = [line.bound for line in lines if line.bound is not None]
    assert bounds == sorted(bounds)
    assert evaluate(problem, solution.choices).cost == solution.cost >= solution.bound
    assert solution.gap == (solution.cost - solution.bound) / solution.cost < 0.05


def test_one_worker_and_several_find_solutions_that_fit(layers):
    problem = layers(50, seed=2, limit=0.3)
    for workers in (1, 3):
        solution = sw.solve(problem, max_iterations=8, workers=workers)
        assert evaluate(problem, solution.choices).feasible


def test_a_search_starts_from_a_solution_that_is_known(layers):
    problem = layers(2)
    best = sw.solve(problem, time_limit=60, gap=0.05)
    lines = []
    again = sw.solve(problem, time_limit=60, gap=1.0, start=best.choices, progress=lines.append)
    assert again.cost == lines[0].cost == best.cost and lines[0].bound is None
    # Without time to find any other, the known one is the result.
    late = sw.solve(problem, time_limit=1e-6, start=best.choices)
    assert (late.choices, late.cost) == (best.choices, best.cost) and late.status in ("feasible", "optimal")


def test_a_start_is_improved_or_kept(make_problem, by_brute_force):
    seen = 0
    for seed in range(40):
        problem = make_problem(seed, nodes=5)
        first = next(
            (c for c in product(*map(range, np.diff(problem.choice_start))) if evaluate(problem, c).feasible),
            None,
        )
        if first is not None:
            seen += 1
            solution = sw.solve(problem, time_limit=60, start=first)
            assert (solution.status, solution.cost) == ("optimal", by_brute_force(problem))
    assert seen > 5


def test_a_start_that_is_no_solution_is_refused(layers):
    problem = layers(2)
    with pytest.raises(UsageError, match="1 choices for"):
        sw.solve(problem, start=[0])
    known = sw.solve(problem, time_limit=60, gap=1.0).choices
    with pytest.raises(
        UsageError, match="start is not a solution of the problem: it does not fit in the memory"
    ):
        sw.solve(replace(problem, usage_limit=0), start=known)


def test_problems_without_edges_memory_or_choices():
    assert sw.solve(Problem.build(costs=[])).choices == []
    assert sw.solve(Problem.build(costs=[[5], [7, 3]])).choices == [0, 1]
    knapsack = Problem.build(
        costs=[[0, 5], [0, 4], [0, 3]],
        usages=[[5, 0], [4, 0], [3, 0]],
        intervals=[[0, 1]] * 3,
        usage_limit=7,
    )
    assert sw.solve(knapsack).choices == [1, 0, 0]


def test_negative_costs_are_costs():
    problem = Problem.build(costs=[[0, -5], [-7, 0]], edges=[[0, 1]], tables=[[0, 0, 20, -1]])
    solution = sw.solve(problem)
    assert (solution.choices, solution.cost, solution.status) == ([0, 0], -7, "optimal")


def test_forbidden_everywhere_is_infeasible_whatever_the_limit():
    problem = Problem.build(costs=[[0, 0], [0]], edges=[[0, 1]], tables=[[FORBIDDEN, FORBIDDEN]])
    solution = sw.solve(problem)
    assert solution.status == "infeasible" and solution.choices is None
    assert solution.shortfall.forbidden
    assert "for any memory limit" in str(solution.shortfall)


def test_wide_tables_are_solved():
    k = 872
    r = random.Random(0)
    problem = Problem.build(
        costs=[[r.randint(0, 99) for _ in range(k)] for _ in range(2)],
        usages=[[r.randint(0, 99) for _ in range(k)] for _ in range(2)],
        intervals=[[0, 1]] * 2,
        edges=[[0, 1]],
        tables=[[r.randint(0, 99) for _ in range(k * k)]],
        usage_limit=50,
    )
    best = min(
        int(problem.costs[i] + problem.costs[k + j] + problem.tables[i * k + j])
        for i in range(k)
        for j in range(k)
        if problem.usages[i] + problem.usages[k + j] <= 50
    )
    solution = sw.solve(problem, time_limit=60)
    assert (solution.status, solution.cost) == ("optimal", best)


@pytest.mark.parametrize("wrong", [{"time_limit": 0}, {"max_iterations": 0}, {"workers": 0}])
def test_arguments_without_sense_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        sw.solve(Problem.build(costs=[[1]]), **wrong)


def test_a_search_ends_once_it_can_save_less_than_it_is_worth(layers, monkeypatch):
    from shardwise.solver import _solve

    monkeypatch.setattr(_solve, "_FREE", 0.0)
    problem, limits = layers(160), {"time_limit": 60, "max_iterations": 40}
    early, late = sw.solve(problem, worth=1e30, **limits), sw.solve(problem, **limits)
    assert early.status == "feasible" and early.bound < late.bound <= late.cost <= early.cost
