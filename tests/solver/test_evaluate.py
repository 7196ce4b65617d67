"""The evaluator counts what the format says, in integers."""

import pytest

from shardwise.errors import UsageError
from shardwise.solver import FORBIDDEN, Problem, evaluate


def _problem(**changes):
    given = {
        "costs": [[1, 2], [10, 20], [0]],
        "usages": [[3, 4], [5, 6], [100]],
        "intervals": [[0, 2], [1, 3], [5, 5]],
        "edges": [[1, 0], [0, 1], [0, 0]],
        "tables": [[100, 200, 300, 400], [0, 0, 0, 5000], [7, 0, 0, 8]],
        "usage_limit": 10,
    }
    return Problem.build(**{**given, **changes})


def test_parallel_edges_loops_and_row_major_tables_all_count():
    assert evaluate(_problem(), [0, 1, 0]).cost == 1 + 20 + 300 + 0 + 7
    assert evaluate(_problem(), [1, 1, 0]).cost == 2 + 20 + 400 + 5000 + 8


def test_intervals_are_half_open_and_empty_ones_use_nothing():
    result = evaluate(_problem(), [1, 1, 0])
    assert (result.peak, result.peak_time, result.fits) == (10, 1, True)
    assert not evaluate(_problem(usage_limit=9), [1, 1, 0]).feasible
    touching = _problem(intervals=[[0, 1], [1, 2], [5, 5]])
    assert evaluate(touching, [1, 1, 0]).peak == 6


def test_a_forbidden_pair_is_named():
    result = evaluate(_problem(tables=[[1, 1, 1, FORBIDDEN], [0] * 4, [0] * 4]), [1, 1, 0])
    assert not result.feasible
    assert result.forbidden == "choices 1 and 1 of nodes 1 and 0 (edge 0)"


def test_sums_beyond_64_bits_are_exact():
    big = FORBIDDEN - 1
    problem = Problem.build(costs=[[big]] * 20)
    assert evaluate(problem, [0] * 20).cost == 20 * big


def test_choices_that_do_not_exist_are_refused():
    with pytest.raises(UsageError, match="choice 2 of node 0: its choices are 0 to 1"):
        evaluate(_problem(), [2, 0, 0])
    with pytest.raises(UsageError, match="2 choices for 3 nodes"):
        evaluate(_problem(), [0, 0])
