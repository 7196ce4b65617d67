"""Verification: right plans pass, in numbers, collectives and memory; wrong ones are caught, and where is said."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.expansion import Choice
from shardwise.graph import capture
from shardwise.placements import Row
from shardwise.planning import random_plan
from shardwise.running import simulate
from shardwise.verification import verify
from shardwise.verification._real import _local_arguments


@pytest.mark.parametrize("mesh", ["d=4", "a=2,b=2", "a=2,b=3", "d=1"])
@pytest.mark.parametrize("seed", range(4))
def test_any_valid_plan_equals_the_model(mlp, plan_of, mesh, seed):
    model, args, graph, offers = mlp
    report = verify(model, args, plan=plan_of(graph, mesh, seed, offers), steps=3, only_plan=True)
    assert report.ok, str(report)
    assert {check.kind for check in report.checks} == {"loss", "output", "gradient", "parameter"}
    assert len(report.checks) == 3 + 1 + 4 + 4
    assert 0.8 * report.predicted_peak < report.peak
    assert bool(report.collectives) == (mesh != "d=1")


def test_double_precision_leaves_no_doubt(mlp, plan_of):
    model, args, graph, offers = mlp
    report = verify(model, args, plan=plan_of(graph, "a=2,b=2", 1, offers), double=True, only_plan=True)
    assert report.ok and report.worst.error < 1e-13
    assert report.collectives == report.priced


def test_a_wrong_row_is_caught_and_its_node_named(mlp, plan_of):
    model, args, graph, offers = mlp
    plan = plan_of(graph, "d=4", 0, offers)
    [relu] = [node.name for node in graph.nodes if node.op == "aten.relu.default"]
    wrong = Choice(plan.mesh, (Row.parse("R -> P(sum)"),))
    report = verify(model, args, plan=replace(plan, choices={**plan.choices, relu: wrong}), only_plan=True)
    assert not report.ok and not report.same_numbers
    assert report.same_collectives
    assert report.verdict.reason.startswith(f"first wrong call: %{relu} = aten.relu.default")
    assert "NOT verified" in str(report)


def test_replicas_that_differ_are_caught(mlp):
    """A claim that a sharded result is replicated leaves different numbers on the ranks."""
    model, args, graph, offers = mlp
    plan = random_plan(graph, mesh="d=2", seed=0, offers=offers, replicated=1.0)
    [relu] = [node.name for node in graph.nodes if node.op == "aten.relu.default"]
    plan = replace(plan, choices={**plan.choices, relu: Choice(plan.mesh, (Row.parse("P(sum) -> R"),))})
    assert not verify(model, args, plan=plan).ok


def test_a_plan_for_other_arguments_is_refused(mlp, plan_of):
    model, args, graph, offers = mlp
    plan = plan_of(graph, "d=4", 0, offers)
    with pytest.raises(
        sw.UsageError, match=r"user_input 'x' is float32\[4, 10\], but was planned as float32\[8, 10\]"
    ):
        verify(model, (args[0][:4], args[1]), plan=plan)
    with pytest.raises(sw.UsageError, match=r"other arguments than captured|of the form"):
        verify(model, args, {"extra": 1}, plan=plan)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 64), nn.Linear(64, 4)

    def forward(self, x):
        return nn.functional.dropout(self.down(nn.functional.dropout(self.up(x), 0.5)), 0.25).square().mean()


def test_dropout_is_compared_with_the_same_streams(plan_of):
    torch.manual_seed(0)
    model, args = Dropped(), (torch.randn(32, 8),)
    graph = capture(model, args)
    reports = [
        verify(model, args, plan=plan_of(graph, "a=2,b=2", seed), steps=2, only_plan=True)
        for seed in range(3)
    ]
    assert all(report.ok for report in reports), str(reports[0])
    assert reports[0].random == "compared elementwise: the model used the plan's random numbers"


class Drawing(nn.Module):
    def __init__(self, draw) -> None:
        super().__init__()
        self.up, self.draw = nn.Linear(8, 16), draw

    def forward(self, x):
        return self.draw(self.up(x)).square()


DRAWN = {
    "exponential": nn.functional.gumbel_softmax,
    "uniform": lambda x: x * torch.empty_like(x).uniform_(1, 3),
    "normal": lambda x: x + torch.empty_like(x).normal_(2, 0.5),
    "poisson": lambda x: x * torch.poisson(x.detach().abs() + 1),
    "geometric": lambda x: x * torch.empty_like(x).geometric_(0.25),
}


@pytest.mark.parametrize("name", DRAWN)
def test_whatever_is_drawn_is_what_one_device_would_draw(name, plan_of):
    torch.manual_seed(0)
    model, args = Drawing(DRAWN[name]), (torch.randn(32, 8),)
    graph = capture(model, args)
    for seed in range(3):
        report = verify(model, args, plan=plan_of(graph, "a=2,b=2", seed), only_plan=True)
        assert report.ok, str(report)


def test_draws_do_not_depend_on_the_mesh_and_differ_between_steps(plan_of):
    torch.manual_seed(0)
    model, args = Dropped(), (torch.randn(32, 8),)
    graph = capture(model, args)
    losses = [
        float(simulate(model, args, plan=plan_of(graph, mesh, seed), seed=7).outputs["output"].whole())
        for mesh, seed in (("d=4", 0), ("a=2,b=2", 1), ("d=1", 2))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) == pytest.approx(losses[2], rel=1e-5)
    other = float(simulate(model, args, plan=plan_of(graph, "d=4", 0), seed=8).outputs["output"].whole())
    assert abs(other - losses[0]) > 1e-4


def test_forward_alone(plan_of):
    torch.manual_seed(0)
    model, args = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), (torch.randn(8, 6),)
    graph = capture(model, args, training=False)
    report = verify(model, args, plan=plan_of(graph, "d=4"))
    assert report.ok and report.steps == 0
    assert {check.kind for check in report.checks} == {"output", "parameter", "buffer"}
    assert model.training


def test_buffers_follow_the_steps(plan_of):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    args = (torch.randn(8, 6),)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    graph = capture(model, args)
    report = verify(model, args, plan=plan_of(graph, "d=4", 3), steps=3)
    assert report.ok, str(report)
    assert {c.name for c in report.checks if c.kind == "buffer"} == {
        "1.running_mean", "1.running_var", "1.num_batches_tracked"
    }  # fmt: skip
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Returns(nn.Module):
    """Returns a loss, and beside it what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x):
        return {"loss": self.linear(x).sum(), "count": x.shape[0], "kind": "sum", "nothing": None}


def test_results_that_are_no_tensors_are_kept_and_compared(plan_of):
    model, args = Returns(), (torch.randn(8, 6),)
    graph = capture(model, args)
    constants = {output.target: output.constant for output in graph.outputs if output.role == "user_output"}
    assert constants == {"loss": None, "count": 8, "kind": "sum", "nothing": None}
    assert sw.Graph.from_json(graph.to_json()) == graph
    plan = plan_of(graph, "d=2", 0)
    report = verify(model, args, plan=plan)
    assert report.ok, str(report)
    assert {check.name for check in report.checks if check.kind == "output"} == set(constants)
    other = tuple(replace(o, constant=9) if o.target == "count" else o for o in graph.outputs)
    wrong = verify(model, args, plan=replace(plan, graph=replace(graph, outputs=other)))
    assert [check.name for check in wrong.checks if not check.ok] == ["count"]
    mapped = sw.shard_map(model, mesh="d=2", in_specs=["S(0)"])(*args)
    assert {name: mapped[name] for name in ("count", "kind", "nothing")} == {
        "count": 8,
        "kind": "sum",
        "nothing": None,
    }


class Writes(nn.Module):
    """Leaves its result in one of its arguments, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x, place):
        place.copy_(self.linear(x))
        return place.square().sum()


def test_what_is_written_to_an_argument_has_no_gradient_of_its_own(plan_of):
    model, args = Writes(), (torch.randn(8, 6), torch.zeros(8, 4))
    report = verify(model, args, plan=plan_of(capture(model, args), "d=2", 0))
    assert report.ok, str(report)


def test_a_function_that_writes_to_its_argument_is_not_mapped():
    with pytest.raises(
        sw.UsageError, match="writes to its argument 'x', which is not supported when it is sharded"
    ):
        sw.shard_map(lambda x: x.mul_(2), mesh="d=2")(torch.ones(4))


def test_fewer_than_no_steps_are_refused(mlp, plan_of):
    model, args, graph, offers = mlp
    with pytest.raises(sw.UsageError, match="steps is -1: give 0 or more"):
        verify(model, args, plan=plan_of(graph, "d=4", 0, offers), steps=-1)


def test_a_program_that_calls_nothing_is_planned_and_verified():
    args = (torch.randn(4, 4),)
    plan = sw.plan(lambda x: x, args, mesh="d=2", cluster="laptop", training=False)
    assert ": 0 a step" in plan.summary()
    assert verify(lambda x: x, args, plan=plan).ok


def test_a_tensor_that_is_given_twice_is_cut_as_each_argument_is_planned():
    x = torch.arange(16.0).reshape(4, 4)
    pins = {"args.0": "S(0)", "args.1": "S(1)"}
    plan = sw.plan(torch.add, (x, x), mesh="d=2", cluster="laptop", training=False, compare=False, pin=pins)
    sharded = SimpleNamespace(plan=plan, program=SimpleNamespace(rank=1))
    (first, second), _ = _local_arguments(sharded, (x, x), {})
    assert torch.equal(first, x[2:]) and torch.equal(second, x[:, 2:])


@pytest.mark.parametrize("stride", [(6, 3, 1), (1, 2, 1)])
def test_what_reads_memory_by_strides_is_planned_as_it_can_be_run(stride, plan_of):
    def windows(x):
        return torch.as_strided(x, (8, 2, 2), stride) * 2

    args = (torch.randn(8, 6),)
    graph = capture(windows, args, training=False)
    reports = [verify(windows, args, plan=plan_of(graph, "d=2", seed)) for seed in range(6)]
    assert all(report.ok for report in reports)


def test_complex_results_are_compared_by_a_tolerance(plan_of):
    def gram(x):
        return x.to(torch.complex64) @ x.T.to(torch.complex64)

    args = (torch.randn(8, 16),)
    graph = capture(gram, args, training=False)
    plan = sw.plan(gram, args, mesh="d=4", cluster="laptop", training=False, compare=False, pin={"x": "S(1)"})
    assert graph == plan.graph
    report = verify(gram, args, plan=plan)
    assert report.ok and report.checks[0].tolerance == 1e-4


def test_a_loss_whose_terms_cancel_is_compared_by_their_size():
    model, x = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8)), torch.randn(4, 6)
    plan = random_plan(capture(model, (x,)), mesh="a=2,b=2", seed=0)
    report = verify(model, (x,), plan=plan, only_plan=True)
    assert report.verdict.kind == "verified"
