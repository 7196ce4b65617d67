"""What a plan is compared with is the model itself: random calls, custom backwards and double precision included."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardwise.expansion import Choice
from shardwise.graph import capture
from shardwise.placements import Row
from shardwise.planning import random_plan
from shardwise.verification import verify


class Model(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        self.between = between

    def forward(self, x):
        return self.second(self.between(self.first(x))).square().mean()


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx, grad):
        return grad


def verified(model, args, seeds=range(2), **options):
    graph = capture(model, args)
    plans = [random_plan(graph, mesh="a=2,b=2", seed=seed) for seed in seeds]
    return [verify(model, args, plan=plan, steps=2, only_plan=True, **options) for plan in plans]


def ran_twice(x):
    return checkpoint(lambda y: F.dropout(y, 0.5).sin(), x, use_reentrant=False)


def of_no_use(x):
    F.dropout(x, 0.5)
    return F.dropout(x, 0.5)


def of_heads(x):
    heads = x.view(2, 8, 2, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.4).transpose(1, 2).reshape(16, 8)


def of_one_head(x):
    rows = x.view(2, 8, 8)
    return F.scaled_dot_product_attention(rows, rows, rows, dropout_p=0.4, is_causal=True).view(16, 8)


DRAWING = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "in place": lambda x: F.dropout(x * 1, 0.3, inplace=True),
    "of everything": lambda x: F.dropout(x, 1.0) + x,
    "of channels": lambda x: F.dropout1d(x.view(2, 8, 8), 0.5).view(16, 8),
    "alpha": lambda x: F.alpha_dropout(x, 0.3, True),
    "computed twice": ran_twice,
    "of no use": of_no_use,
    "attention": of_heads,
    "attention of one head": of_one_head,
    "gumbel": F.gumbel_softmax,
    "rrelu": lambda x: F.rrelu(x, training=True),
    "normal": lambda x: x + torch.randn_like(x) * torch.normal(0.0, 2.0, (8,)),
    "multinomial": lambda x: x * torch.multinomial(torch.ones(16, 8), 8),
    "straight through": lambda x: Rounded.apply(F.dropout(x, 0.3)),
}


@pytest.mark.parametrize("name", DRAWING)
def test_a_model_that_draws_is_given_the_plans_draws(name):
    torch.manual_seed(0)
    for report in verified(Model(DRAWING[name]), (torch.randn(16, 8),)):
        assert report.ok and report.checks and report.reference == "the model", str(report)
        assert report.random == "compared elementwise: the model used the plan's random numbers"


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_dropout_between_recurrent_layers(kind):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = getattr(nn, kind)(4, 6, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x):
            return self.layers(x)[0].square().mean()

    torch.manual_seed(0)
    for report in verified(Recurrent(), (torch.randn(4, 3, 4),), seeds=[0]):
        assert report.ok, str(report)


def test_drawing_leaves_torchs_generator_as_it_was():
    model, args = Model(DRAWING["dropout"]), (torch.randn(16, 8),)
    graph = capture(model, args)
    plan = random_plan(graph, mesh="d=2")
    before = torch.get_rng_state()
    verify(model, args, plan=plan, only_plan=True)
    assert torch.equal(torch.get_rng_state(), before)


class Moody(nn.Module):
    """Draws once more, or a shape of its own, after it was captured."""

    def __init__(self):
        super().__init__()
        self.linear, self.mood = nn.Linear(8, 8), "captured"

    def forward(self, x):
        x = F.dropout(self.linear(x), 0.5)
        if self.mood == "more":
            x = x + torch.rand(8)
        if self.mood == "other":
            x = x * torch.rand_like(x)
        x = x * torch.randint_like(x, 1, 5) if self.mood == "kind" else F.dropout(x, 0.5)
        return x.sum() if self.mood == "fewer" else F.dropout(x, 0.1).sum()


@pytest.mark.parametrize(
    ("mood", "reason"),
    [
        ("more", "calls aten.rand.default where its graph calls aten.native_dropout"),
        ("other", "calls aten.rand_like.default where its graph calls aten.native_dropout"),
        ("kind", "calls aten.randint_like.low_dtype where its graph calls aten.native_dropout"),
        ("fewer", "the graph makes 3 random calls and the model 2"),
    ],
)
def test_draws_that_cannot_be_matched_are_not_verified(mood, reason):
    model, args = Moody(), (torch.randn(4, 8),)
    plan = random_plan(capture(model, args), mesh="d=2")
    model.mood = mood
    report = verify(model, args, plan=plan)
    assert not report.ok and report.verdict.kind == "not compared" and not report.checks
    assert "not compared: " in str(report) and str(report).endswith("NOT verified")
    assert reason in report.verdict.reason


def test_a_graph_that_is_not_the_model_is_found_out_though_it_draws():
    """Whatever capture gets wrong: here the program looks at the class of its tensors."""

    def between(x):
        return F.dropout(x, 0.5) * (2 if type(x) is torch.Tensor else 3)

    torch.manual_seed(0)
    model, args = Model(between), (torch.randn(16, 8),)
    report = verify(model, args, plan=random_plan(capture(model, args), mesh="d=2"))
    assert not report.ok and report.verdict.kind == "wrong"
    assert report.verdict.reason.startswith("the captured graph differs from the model itself: ")


def test_attention_drops_the_same_forward_and_backward_however_both_are_sharded():
    torch.manual_seed(0)
    model, args = Model(of_heads), (torch.randn(16, 8),)
    graph = capture(model, args)
    plan = random_plan(graph, mesh="d=2", replicated=1.0)
    forward, backward = (node.name for node in graph.nodes if "attention" in node.op)
    rows = {
        forward: "S(1), S(1), S(1), R -> S(1), S(1) with local seeds",
        backward: "S(0), S(0), S(0), S(0), S(0), S(0), R -> S(0), S(0), S(0) with local seeds",
    }
    choices = {name: Choice(plan.mesh, (Row.parse(row),)) for name, row in rows.items()}
    report = verify(model, args, plan=replace(plan, choices={**plan.choices, **choices}), only_plan=True)
    assert report.same_numbers and report.sharded == 2, str(report)


def test_buffers_that_are_assigned_and_parameters_that_are_written_follow_the_steps():
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            with torch.no_grad():
                self.linear.weight.clamp_(-0.2, 0.2)
            self.seen = self.seen + 1
            return self.linear(x).square().mean() * self.seen

    torch.manual_seed(0)
    model = Writing()
    before = model.linear.weight.detach().clone()
    for report in verified(model, (torch.randn(16, 8),)):
        assert report.ok, str(report)
        assert {check.kind for check in report.checks} >= {"buffer", "parameter"}
    assert torch.equal(model.linear.weight, before) and model.seen == 0


def test_double_precision_is_the_models_own_whatever_dtypes_it_names():
    class Narrow(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.constant = nn.Linear(8, 8), torch.rand(8)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                y = F.layer_norm(self.linear(x), (8,))
            y = F.dropout(y.half().float() * torch.zeros(8, dtype=torch.float32).add(0.3), 0.5)
            return (y * self.constant + torch.tensor([1.5])).square().mean()

    torch.manual_seed(0)
    for report in verified(Narrow(), (torch.randn(16, 8),), double=True):
        assert report.ok and report.worst.error < 1e-12, str(report)
        assert report.reference == "the model in double precision"


def test_the_model_runs_under_the_autocast_that_it_was_captured_under():
    model, args = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)), (torch.randn(16, 8),)
    with torch.autocast("cpu", torch.bfloat16):
        plan = random_plan(capture(model, args), mesh="a=1", seed=0)
        within = verify(model, args, plan=plan, only_plan=True)
    outside = verify(model, args, plan=plan, only_plan=True)
    for report in (within, outside):
        assert report.ok, str(report)
        assert report.worst.error < 1e-6  # and not the rounding of bfloat16


def test_what_stays_narrow_in_double_precision_is_priced_so():
    def program(x):
        places = x.argsort(1)
        counts = (x > 0).to(torch.int32).cumsum(0)
        return x.gather(1, places).sum() + counts.float().mean(), places, counts, (x > 0)

    args = (torch.randn(12, 8, requires_grad=True),)
    graph = capture(program, args)
    kinds = set()
    for seed in range(6):
        plan = random_plan(graph, mesh="a=2,b=2", seed=seed)
        report = verify(program, args, plan=plan, double=True, only_plan=True)
        assert report.ok and report.collectives == report.priced, str(report)
        kinds |= {move.change.target and graph.tensor(move.source.ref).dtype for move in plan.schedule.moves}
    assert {torch.float32, torch.int64, torch.bool} <= kinds


# --- rounding and mistakes ------------------------------------------------------------------------------------


def cancelling(x):
    """Leaves little of large numbers: in float32 that is mostly rounding."""
    return (x + 3e4 * x.sum(1, keepdim=True)).sin()


def test_rounding_is_distinguished_from_mistakes_with_figures(plan_of):
    torch.manual_seed(0)
    model, args = Model(cancelling), (torch.randn(16, 8),)
    report = verify(model, args, plan=plan_of(capture(model, args), "a=2,b=2", 1))
    assert report.ok and report.verdict.kind == "rounding", str(report)
    assert any(not check.ok for check in report.checks)
    assert "in double precision by" in report.verdict.reason and "the model is" in report.verdict.reason
    assert str(report).endswith("verified: sharded equals unsharded up to rounding")


@pytest.mark.parametrize("seed", range(3))
def test_a_sum_that_cancels_is_rounding_alone(plan_of, seed):
    """The sum of what a layer normalisation makes is zero, in double precision as well."""
    torch.manual_seed(seed)
    layers, args = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.LayerNorm(8)), (torch.randn(4, 8),)

    def model(x):
        return layers(x).sum()

    report = verify(model, args, plan=plan_of(capture(model, args), "a=2,b=2", seed), only_plan=True)
    assert report.ok, str(report)


def test_a_mistake_beside_rounding_is_wrong_and_named(plan_of):
    torch.manual_seed(0)
    model, args = Model(cancelling), (torch.randn(16, 8),)
    graph = capture(model, args)
    plan = plan_of(graph, "d=2", 0)
    [sine] = [node.name for node in graph.nodes if node.op == "aten.sin.default"]
    wrong = Choice(plan.mesh, (Row.parse("R -> P(sum)"),))
    report = verify(model, args, plan=replace(plan, choices={**plan.choices, sine: wrong}), only_plan=True)
    assert not report.ok and report.verdict.kind == "wrong"
    assert report.verdict.reason.startswith(f"first wrong call: %{sine} = aten.sin.default")


# --- the plan that shards as much as possible -------------------------------------------------------------------


def test_a_plan_that_shards_nothing_is_not_all_that_is_tried(mlp):
    model, args, graph, offers = mlp
    plan = random_plan(graph, mesh="a=2,b=2", offers=offers, replicated=1.0)
    report = verify(model, args, plan=plan)
    assert report.ok and report.sharded == 0 and report.calls == len(graph.nodes)
    other = report.most_sharded
    assert other.ok and other.sharded == report.calls and len(other.collectives) > 10
    assert f"{other.sharded} of {other.calls} calls sharded" in str(report)
    assert verify(model, args, plan=plan, only_plan=True).most_sharded is None
    assert verify(model, args, plan=random_plan(graph, mesh="d=1")).most_sharded is None


def test_it_fails_if_either_fails(mlp):
    model, args, graph, offers = mlp
    report = verify(model, args, plan=random_plan(graph, mesh="d=2", offers=offers))
    bad = replace(report.most_sharded, collectives=())
    assert report.ok and not replace(report, most_sharded=bad).ok
    assert str(replace(report, most_sharded=bad)).endswith("NOT verified")


def test_the_report_as_json_has_all_of_it(mlp):
    model, args, graph, offers = mlp
    document = verify(model, args, plan=random_plan(graph, mesh="d=2", offers=offers)).to_json()
    assert document["verdict"] == "verified" and document["calls"]["all"] == len(graph.nodes)
    assert document["most_sharded"]["calls"]["sharded"] > 0
