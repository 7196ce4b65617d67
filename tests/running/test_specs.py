"""Specs of `shard_map` and pins of `plan`: every way to write a layout, on meshes and dims of any size."""

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import shardwise as sw
from shardwise.planning import DoesNotFit

GRID = "x=2,y=2"
STRIDED = [_StridedShard(0, split_factor=2), Shard(0)]


def run(mesh, a_spec, b_spec, out_spec, rows=8, **options):
    """The layouts and collectives of a product that runs with these specs, its values checked."""
    a, b = torch.rand(rows, 8), torch.rand(8, 8)
    mapped = sw.shard_map(torch.matmul, mesh=mesh, in_specs=[a_spec, b_spec], out_specs=[out_spec], **options)
    torch.testing.assert_close(mapped(a, b), a @ b)
    plan = mapped.plan_for(a, b)
    kinds = [step.kind for move in plan.schedule.moves for step in move.change.collectives]
    return [str(layout) for layout in (*plan.inputs.values(), *plan.outputs)], kinds


@pytest.mark.parametrize(
    ("specs", "layouts", "collectives"),
    [
        (("[{x}, {}]", "[{}, {y}]", "[{x}, {y}]"), ["S(0), R", "R, S(1)", "S(0), S(1)"], []),
        (("[{x}, {}]", None, "R, R"), ["S(0), R", "R, R", "R, R"], ["all_gather"]),
        (("[{y, x}, {}]", None, None), ["S(0)[1], S(0)[0]", "R, R", "R, R"], None),
        ((STRIDED, None, "S(0), S(0)"), ["S(0)[1], S(0)[0]", "R, R", "S(0), S(0)"], None),
        ((None, None, STRIDED), ["R, R", "R, R", "S(0)[1], S(0)[0]"], []),
        (
            (None, None, [Replicate(), _StridedShard(0, split_factor=3)]),
            ["R, R", "R, R", "R, S(0, sf=3)"],
            [],
        ),
        (("P(sum), R", None, "R, R"), ["P(sum), R", "R, R", "R, R"], ["all_reduce"]),
        (("P(max), R", None, "R, R"), ["P(max), R", "R, R", "R, R"], ["all_reduce"]),
        (("S(1), R", "S(0), R", "P(sum), R"), ["S(1), R", "S(0), R", "P(sum), R"], []),
        (("P(sum), R", None, "P(sum), R"), ["P(sum), R", "R, R", "P(sum), R"], []),
    ],
    ids=str,
)
def test_a_spec_is_kept_however_it_is_written(specs, layouts, collectives):
    found, kinds = run(GRID, *specs)
    assert found == layouts
    assert collectives is None or kinds == collectives


def test_a_sharding_is_a_spec_and_a_pin():
    sharding = sw.Sharding.parse("[{y, x}, {}]", sw.Mesh.parse(GRID))
    assert run(GRID, sharding, None, None)[0][0] == "S(0)[1], S(0)[0]"
    model, x = nn.Linear(8, 8), torch.rand(8, 8)
    pins = {"weight": sharding, "input": "S(0, sf=2), S(0)"}
    plan = sw.plan(model, (x,), mesh=GRID, pin=pins, optimizer="none")
    by_name = {entry.target: str(plan.inputs[entry.name]) for entry in plan.graph.inputs}
    assert by_name["weight"] == by_name["input"] == "S(0)[1], S(0)[0]"
    assert sw.verify(model, (x,), plan=plan)
    assert sw.Plan.from_json(plan.to_json()) == plan and "S(0)[1]" in plan.explain("weight")


@pytest.mark.parametrize("mesh", ["dp=1,tp=4", "tp=4,dp=1", "dp=1"])
def test_an_axis_of_one_rank_means_nothing(mesh):
    given = ", ".join("S(0)" for _ in mesh.split(","))
    named = "[{" + ", ".join(part.split("=")[0] for part in mesh.split(",")) + "}, {}]"
    for spec in (given, named):
        assert run(mesh, spec, None, spec)[1] == []
    model, x = nn.Linear(8, 8), torch.rand(8, 8)
    assert sw.verify(model, (x,), plan=sw.plan(model, (x,), mesh=mesh, pin={"input": given}))


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_a_dim_may_be_smaller_than_its_axis(rows):
    layouts, collectives = run("d=4", "S(0)", None, "S(0)", rows=rows)
    assert layouts == ["S(0)", "R", "S(0)"] and (rows == 1 or not collectives)
    assert run("d=4", "S(0)", "S(1)", None, rows=rows, auto=True)[0][:2] == ["S(0)", "S(1)"]


def test_a_partial_argument_has_the_gradient_of_the_whole():
    x = torch.rand(4, 4, requires_grad=True)
    sw.shard_map(lambda x: (x * x).sum(), mesh="d=4", in_specs=["P(sum)"], out_specs="P(sum)")(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_a_parameter_is_never_partial():
    with pytest.raises(
        sw.UsageError, match=r"makes weight P\(sum\), but every rank would train its own term"
    ):
        sw.plan(nn.Linear(8, 8), (torch.rand(8, 8),), mesh="d=4", pin={"weight": "P(sum)"})


def test_a_part_of_an_axis_needs_its_own_mesh():
    with pytest.raises(sw.UsageError, match=r"one on mesh d_0=2,d_1=2, .*: give that mesh instead of d=4"):
        run("d=4", "[{d:(1)2}, {}]", None, None)


def test_shard_map_takes_the_options_of_plan(capsys):
    pinned, _ = run("d=4", None, None, None, auto=True, pin={"input:args.1": "S(1)"}, cluster="h100")
    assert pinned[1] == "S(1)"
    with pytest.raises(DoesNotFit):
        run("d=4", None, None, None, memory="100B")


@pytest.mark.parametrize(
    ("specs", "called"),
    [
        (("S(0)", None, "S(0)"), "data parallel (rows split) on d"),
        ((None, "S(1)", "S(1)"), "model parallel (columns split) on d"),
        (("S(1)", "S(0)", "R"), "model parallel (contracted dim split, partial sums) on d"),
    ],
)
def test_debugging_says_what_a_choice_is_called(specs, called, capsys):
    """As in "Selected Strategy: Data Parallel (Split M)"."""
    run("d=4", *specs, debug=True)
    assert f"# {called}" in capsys.readouterr().err


def test_debugging_names_what_is_data_parallel(capsys):
    sw.shard_map(torch.relu, mesh="d=4", in_specs=["S(0)"], out_specs="S(0)", debug=True)(torch.rand(8, 4))
    assert "# data parallel on d" in capsys.readouterr().err
