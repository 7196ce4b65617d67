"""Where parameters live: at home for the optimizer, and held for passes as time and memory decide."""

import re

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.errors import UsageError
from shardwise.planning import plan_graph

PASSES = 4


class Wide(nn.Module):
    """A matrix that costs more to move than to multiply with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(512, 512))

    def forward(self, x):
        return (x @ self.weight).relu().sum()


@pytest.fixture(scope="module")
def graph():
    with torch.device("meta"):
        return sw.capture(Wide(), (torch.empty(4096, 512),))


@pytest.fixture(scope="module")
def planned(graph):
    def plan(passes=PASSES, zero=True, **options):
        options = {"cluster": "laptop", "compare": False, "confirm": False, "pin": {"x": "S(0)"}, **options}
        return plan_graph(graph, mesh="dp=4", micro_batches=passes, zero=zero, **options)

    return plan


def layouts(plan):
    """The home of the weight, what passes begin from, and what they end with."""
    return str(plan.home("weight")), str(plan.inputs["weight"]), str(plan.once.accumulated["weight"])


def test_with_memory_states_alone_are_sharded(planned):
    """As in ZeRO 1: the weight is gathered once, its gradients are reduced once."""
    assert layouts(planned()) == ("S(0)", "R", "P(sum)")


def test_less_memory_shards_gradients_then_parameters(planned):
    seen, limit = [], None
    for _ in range(3):
        plan = planned(memory=limit)
        seen.append(layouts(plan))
        limit = plan.cost.peak - 1
    assert seen[0] == ("S(0)", "R", "P(sum)")
    assert seen[-1][2] == seen[-1][0]
    assert all(home in ("S(0)", "S(1)") for home, _, _ in seen)  # which of them makes no difference


def test_the_choice_costs_no_more_and_is_within_its_bound(planned):
    for passes in (1, PASSES):
        free, tied = planned(passes), planned(passes, zero=False)
        assert not tied.homes
        assert free.cost.seconds <= tied.cost.seconds * (1 if passes == 1 else 0.99)
        assert free.bound == pytest.approx(free.cost.seconds, rel=2e-3)


def test_what_happens_once_is_priced_once(planned):
    plan = planned()
    once = sum(move.change.price for move in plan.once.moves)
    per_pass = sum(move.change.price for move in plan.schedule.moves)
    assert sum(plan.cost.communication.values()) == pytest.approx(once + PASSES * per_pass)
    weight = 512 * 512 * 4
    states = 3 * weight // 4  # at home: itself and Adam's two
    assert plan.cost.lasting == states + weight + weight  # what is held, and the sums


def test_states_are_sharded_inside_a_host_and_replicated_between(graph):
    """As hybrid sharding does, if it is wanted so."""
    pins = {"x": "S(0), S(0)", "weight": "R, S(0)"}
    plan = plan_graph(
        graph, mesh="host=2,device=2", micro_batches=2, zero=True, pin=pins, cluster="laptop", compare=False
    )
    home, held, added = layouts(plan)
    assert home == "R, S(0)" and held in ("R, S(0)", "R, R") and added.startswith("P(sum), ")


def test_it_is_said_and_explained(planned):
    plan = planned()
    assert (
        "gathered once  1 parameter, " in plan.summary() and "reduced once   1 gradient, " in plan.summary()
    )
    assert "held as    [S(0)] -> [R] by all_gather" in plan.explain("weight")
    assert plan.considered("mm")
    assert "held weight: R -> " in plan.diff(planned(zero=False)) or "input weight" in plan.diff(
        planned(zero=False)
    )


def test_baselines_hold_parameters_as_they_are_at_home(planned):
    plan = planned(compare=True, pin={})
    assert plan.baselines["FSDP"].seconds >= plan.cost.seconds


def test_a_document_whose_layouts_do_not_belong_together_is_refused(planned):
    for place, wrong, match in (
        (("homes", "weight"), "P(sum)", "a layout without partials"),
        (("inputs", "weight"), "S(1)", "a layout of which 'S(1)' has some axes gathered"),
    ):
        document = planned().to_json()
        document[place[0]][place[1]] = wrong
        with pytest.raises(UsageError, match=re.escape(match)):
            sw.Plan.from_json(document)
