"""Time limits: nothing that a search does may pass one, neither compiling nor explaining."""

import importlib
import threading
import time

import pytest

from shardwise.solver import (
    Problem,
    _compiled,
    _dual,
    _eliminate,
    _messages,
    _pricing,
    _reduce_ops,
    _walk,
    _work,
    in_time,
    prepare,
    solve,
)

_Run = importlib.import_module("shardwise.solver._solve")._Run  # the function of that name hides the module
COMPILED = (_compiled, _dual, _eliminate, _messages, _pricing, _reduce_ops, _walk, _work)


@pytest.fixture
def never():
    """A job that does not end before the test does."""
    ended = threading.Event()
    yield lambda *_: ended.wait(300)
    ended.set()


def test_a_job_in_time_gives_its_result_and_raises_its_mistake():
    soon = time.monotonic() + 300
    assert in_time(lambda: 5, soon) == 5
    with pytest.raises(ZeroDivisionError):
        in_time(lambda: 1 // 0, soon)


def test_a_job_past_the_deadline_is_left_to_itself(never):
    assert in_time(never, time.monotonic()) is None


@pytest.mark.parametrize(
    ("stage", "reason"),
    [("_prepare", "code was compiled"), ("_reduce", "reduced"), ("_work", "no solution")],
)
def test_a_search_ends_whatever_does_not(never, layers, stage, reason):
    prepare()
    stuck = type("Stuck", (_Run,), {stage: never})
    begun = time.monotonic()
    solution = stuck(layers(60), begun, begun + 5, None, 0, 2, None).solve()
    assert (solution.status, solution.choices) == ("unknown", None)
    assert reason in solution.reason


def test_an_explanation_gets_no_time_of_its_own():
    deadlines = []

    class Watched(_Run):
        def _attempt(self, problem, deadline):
            deadlines.append(deadline)

    problem = Problem.build(costs=[[0]], usages=[[9]], intervals=[[0, 1]], usage_limit=5)
    run = Watched(problem, 0.0, time.monotonic() + 300, None, 0, 1, None)
    with pytest.raises(AttributeError):
        run.solve()  # what is attempted here gives nothing
    assert deadlines == [run.deadline]


def test_after_preparing_nothing_is_compiled_any_more(layers):
    """Whether exact elimination is possible or not, with memory that binds and with none."""

    def compiled():
        return {
            f"{module.__name__}.{name}": list(made.signatures)
            for module in COMPILED
            for name, made in vars(module).items()
            if hasattr(made, "signatures")
        }

    prepare()
    before = compiled()
    assert sum(map(len, before.values())) > 10
    for problem in (layers(150, seed=5, limit=0.3), layers(40, limit=2.0)):
        solve(problem, max_iterations=10)
    assert compiled() == before
