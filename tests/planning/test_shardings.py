"""Plans that follow shardings: a few are given, the others propagated, and prices decide where they conflict."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise.errors import UsageError
from shardwise.graph import capture
from shardwise.planning import plan_graph

OPTIONS = {"mesh": "dp=2,tp=2", "cluster": "laptop"}


class Fused(nn.Module):
    """Two gates from one product, which no row can shard through the cut between them."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.both, self.down = nn.Linear(16, 24, bias=False), nn.Linear(12, 16, bias=False)

    def forward(self, x):
        gate, up = self.both(self.norm(x)).chunk(2, -1)
        return (x + self.down(F.silu(gate) * up)).square().mean()


GIVEN = {"x": "[{dp}, {}]", "both.weight": "[{tp}, {?}]"}


@pytest.fixture(scope="module")
def fused():
    torch.manual_seed(0)
    return Fused(), (torch.randn(8, 16),)


@pytest.fixture(scope="module")
def followed(fused):
    return sw.plan(*fused, shardings=GIVEN, **OPTIONS)


def layouts(plan):
    return {entry.target: str(plan.inputs[entry.name]) for entry in plan.graph.inputs}


def test_what_is_given_is_kept_to_and_the_rest_is_propagated(followed):
    assert layouts(followed) == {
        "x": "S(0), R",
        "both.weight": "R, S(0)",
        "down.weight": "R, S(1)",
        "norm.weight": "R, R",
        "norm.bias": "R, R",
        "output": "R, R",
    }
    assert followed.shardings == {
        name: str(sw.Sharding.parse(text, "dp=2,tp=2")) for name, text in GIVEN.items()
    }


def test_conflicts_are_resolved_by_price_and_named(followed):
    departing = {node.op for node in followed.proposal.departures(followed)}
    assert departing == {"aten.split.Tensor", "aten.cat.default"}
    assert (
        "2 of" in followed.summary()
        and "depart from the propagated shardings, by price" in followed.summary()
    )
    explained = " ".join(followed.explain("split").split())
    assert "departs split is [S(0), R], and [{dp, ?}, {tp, ?}] is propagated" in explained
    assert "departs" not in followed.explain("down.weight")


def test_the_plan_is_like_any_other(fused, followed, tmp_path):
    assert sw.verify(*fused, plan=followed, only_plan=True).ok
    followed.save(tmp_path / "plan.json")
    again = sw.Plan.load(tmp_path / "plan.json")
    assert again.shardings == followed.shardings and again.cost == followed.cost
    assert again.summary() == followed.summary()
    assert followed.bound <= followed.cost.seconds
    assert followed.confirmation is not None and not followed.confirmation.refuted
    document = json.loads(json.dumps(followed.to_json()))
    document["options"]["shardings"] = {"both.weight": "[{tp}]"}
    with pytest.raises(UsageError, match=r"options\.shardings: .* has 1 dims"):
        sw.Plan.from_json(document)


def test_it_is_compared_with_the_cheapest_of_all_plans(followed):
    assert list(followed.baselines) == ["without shardings"]
    assert followed.baselines["without shardings"].seconds <= followed.cost.seconds


def test_nothing_given_on_an_axis_leaves_it_unused(fused):
    made = sw.plan(*fused, shardings={"x": "[{dp}, {}]"}, compare=False, **OPTIONS)
    assert {choice.rows[1].is_replicated for choice in made.choices.values()} == {True}
    assert "every call follows the propagated shardings" in made.summary()


def test_priorities_decide_what_is_propagated_first(fused):
    texts = ["[{dp}p1, {}]", "[{}, {dp}]"], ["[{dp}, {}]", "[{}, {dp}p1]"]
    made = [
        sw.plan(lambda a, b: a @ b, (torch.rand(8, 4), torch.rand(4, 8)), training=False, compare=False,
                confirm=False, mesh="dp=2", shardings=dict(zip("ab", given, strict=True)))
        for given in texts
    ]  # fmt: skip
    assert [str(plan.outputs[0]) for plan in made] == ["S(1)", "S(0)"]


def test_pins_propose_too_and_the_optimum_says_where_it_departs():
    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False)

        def forward(self, x):
            return self.down(torch.relu(self.up(x))).square().mean()

    with torch.device("meta"):
        graph = capture(MLP(), (torch.empty(4, 64),))
    made = plan_graph(graph, pin={"up.weight": {"tp": "S(0)"}}, confirm=False, **OPTIONS)
    assert str(made.proposal.outcome["down.weight"]) == "[{?}, {tp, ?}]"
    assert made.baselines["propagated"].seconds >= made.cost.seconds
    departing = made.proposal.departures(made)
    for node in made.graph.nodes:
        assert ("departs" in made.explain(node.name)) == (node in departing)
    assert plan_graph(graph, confirm=False, compare=False, **OPTIONS).proposal is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"z": "[{dp}, {}]"}, "'z' in shardings matches no parameter"),
        ({"x": "[{dp, tp, ?}, {}]"}, r"x of shape \(2, 6\) cannot have the sharding"),
        ({"x": "[{}, {tp:(1)2}]"}, "of 'x' has a part of an axis: plan for a mesh that has it as an axis"),
        ({"x": "[{?}, {tp, dp}]"}, "of 'x' has axes in another order than mesh dp=2,tp=4"),
        ({"x": "[{}, {}] partial={tp:sum}"}, "of 'x' is partial"),
    ],
)
def test_shardings_that_cannot_be_are_refused(given, message):
    def program(x):
        return x.relu()

    with pytest.raises(UsageError, match=message):
        sw.plan(program, (torch.rand(2, 6),), shardings=given, training=False, mesh="dp=2,tp=4")


@pytest.mark.parametrize("given", ["[{tp, dp}, {}]", "[{}, {tp, dp}]", "[{dp, tp}, {}]"])
def test_a_closed_sharding_may_have_any_order_of_axes_and_dims_of_any_size(given):
    def program(x):
        return x.relu() * 2

    args = (torch.randn(3, 8),)
    made = sw.plan(program, args, shardings={"x": given}, training=False, **OPTIONS)
    assert str(sw.Sharding.from_layout(made.inputs["x"], 2)) == given
    assert made.pins == {} and made.explain("relu")
    assert sw.verify(program, args, plan=made, only_plan=True).ok


def test_a_tensor_is_pinned_or_has_a_sharding():
    with pytest.raises(UsageError, match="weight is pinned and has a sharding as well"):
        sw.plan(
            nn.Linear(8, 8),
            (torch.rand(8, 8),),
            pin={"weight": "R, R"},
            shardings={"weight": "[{}, {}]"},
            **OPTIONS,
        )
