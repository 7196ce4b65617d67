"""Plans are confirmed before they are returned: a choice that an experiment refutes is not used, and shown."""

import pytest
import torch

import shardwise as sw
from shardwise.calls import Call
from shardwise.expansion import Choice
from shardwise.experiments import Confirmations, confirm
from shardwise.graph import capture
from shardwise.mesh import Cluster, Mesh
from shardwise.placements import Row
from shardwise.planning import Offers, Plan, Planner
from shardwise.rules import book_rows


def with_wrong_row(op: str, row: str):
    """A book in which one operator has one row more."""

    def rows(call):
        return [*(book_rows(call) or []), *([Row.parse(row)] if call.name == op else [])]

    return rows


def planned(function, args, known, pins, confirm=True, mesh="dp=2,tp=2"):
    graph = capture(function, args, training=False)
    planner = Planner(graph, Mesh.parse(mesh), Cluster.of("laptop"))
    planner.offers = Offers(graph, known=known)
    return planner.plan(pins, compare=False, confirm=confirm)


WRONG = "S(1) -> S(1)"  # of a softmax along that dim
PINS = {"x": "S(0), S(1)", "output": "S(0), S(1)"}


def softmax(x):
    return torch.softmax(x, 1)


def test_a_refuted_choice_is_not_used_and_shown():
    known = with_wrong_row("aten._softmax.default", WRONG)
    args = (torch.rand(512, 512),)
    wrong = planned(softmax, args, known, PINS, confirm=False)
    assert not sw.verify(softmax, args, plan=wrong, only_plan=True).ok
    plan = planned(softmax, args, known, PINS)
    assert sw.verify(softmax, args, plan=plan, only_plan=True).ok
    found = plan.confirmation
    assert found is not None and found.undecided == 0 and found.confirmed >= 0
    assert {refuted.call for refuted in found.refuted} == {
        "aten._softmax.default(float32[512, 512], 1, False)"
    }
    assert any(refuted.choice == "dp: S(0) -> S(0); tp: S(1) -> S(1)" for refuted in found.refuted)
    assert "refuted by experiment and not used" in str(plan)
    assert Plan.from_json(plan.to_json()).confirmation == found


def test_a_call_whose_choices_are_refuted_again_and_again_is_replicated():
    def known(call):
        rows = book_rows(call)
        if call.name != "aten._softmax.default":
            return rows
        return [
            Row.parse(text)
            for text in ("S(1) -> S(1)", "S(1) -> P(sum)", "R -> S(1)", "S(0) -> S(1)", "R -> S(0)")
        ]

    plan = planned(softmax, (torch.rand(512, 512),), known, PINS)
    assert plan.choices["_softmax"].source == "replicated"
    assert len(plan.confirmation.refuted) >= 4


def test_what_cannot_be_decided_is_counted_and_used():
    def dropout(x):
        return torch.dropout(x, 0.5, True)

    plan = planned(dropout, (torch.rand(512, 512),), book_rows, {"output": "S(0), S(1)"})
    assert (plan.confirmation.undecided, plan.confirmation.refuted) == (1, ())
    assert "1 could not be tested" in str(plan)


def test_outcomes_are_kept_on_disk(tmp_path):
    call = Call.of(torch.ops.aten.neg.default, torch.empty(1024, 1024, device="meta"))
    rows = Row.parse("S(0) -> S(0)"), Row.parse("S(1) -> S(1)")
    item = call, Choice(Mesh.parse("dp=8,tp=8"), rows)
    assert Confirmations(tmp_path, here={}).known(*item) is None
    [tried] = Confirmations(tmp_path, here={}).of([item])
    assert tried.outcome == "holds"

    def none(items, progress):
        raise AssertionError("nothing is left to be run")

    assert Confirmations(tmp_path, run=none, here={}).of([item]) == [tried]


def attention(heads, shared):
    query, key = (
        torch.empty(16, heads, 8192, 128, device="meta"),
        torch.empty(16, shared, 8192, 128, device="meta"),
    )
    return Call.of(torch.ops.shardwise.attention.default, query, key, key, None, None, True, 0.1, 0.0)


def view(*shape):
    return Call.of(torch.ops.aten.view.default, torch.empty(16, 8192, 4096, device="meta"), list(shape))


@pytest.mark.parametrize(
    ("call", "rows", "outcome"),
    [
        (attention(32, 8), ["S(0), S(0), S(0) -> S(0), S(0)", "S(1), S(1), S(1) -> S(1), S(1)"], "holds"),
        (attention(32, 8), ["S(0), S(0), S(0) -> S(0), S(0)", "S(1), R, R -> S(1), S(1)"], "refuted"),
        (view(131072, 4096), ["S(0) -> S(0) with local sizes", "S(2) -> S(1) with local sizes"], "holds"),
        (view(131072, 4096), ["S(0) -> S(0) with local sizes", "S(1) -> S(0) with local sizes"], "refuted"),
        (
            view(16, 8192, 32, 128),
            ["S(0) -> S(0) with local sizes", "S(2) -> S(2) with local sizes"],
            "holds",
        ),
        (
            view(16, 8192, 32, 128),
            ["S(0) -> S(0) with local sizes", "S(2) -> S(3) with local sizes"],
            "refuted",
        ),
    ],
)
def test_large_calls_are_tested_at_small_sizes_on_a_small_mesh(call, rows, outcome):
    choice = Choice(Mesh.parse("dp=8,tp=8"), tuple(Row.parse(row) for row in rows))
    assert confirm(call, choice).outcome == outcome
