"""Experiments on meshes of several axes: rows that hold alone are tried together."""

import pytest
import torch

from shardwise.calls import Call
from shardwise.expansion import Choice
from shardwise.experiments import WAYS, check_choice
from shardwise.mesh import Mesh
from shardwise.placements import Row

aten = torch.ops.aten
MESHES = [Mesh.parse("a=2,b=2"), Mesh.parse("a=3,b=2")]


def tried(mesh, rows, op, *args, way="uneven"):
    return check_choice(Call.of(op, *args), Choice(mesh, tuple(Row.parse(row) for row in rows)), way)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_rows_that_hold_together(mesh, way):
    x, y = torch.rand(6, 12), torch.rand(12, 5)
    for rows in (
        ["S(0), R -> S(0)", "S(1), S(0) -> P(sum)"],
        ["S(1), S(0) -> P(sum)", "S(1), S(0) -> P(sum)"],
        ["P(sum), R -> P(sum)", "P(avg), R -> P(avg)"],
        ["R, R -> R", "R, S(1) -> S(1)"],
    ):
        assert tried(mesh, rows, aten.mm.default, x, y, way=way)
    table, index = torch.rand(12, 5), torch.randint(12, (7,))
    rows = ["S(0), R -> P(sum) with local lookup", "R, S(0) -> S(0)"]
    assert tried(mesh, rows, aten.embedding.default, table, index, way=way)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_rows_that_do_not(mesh):
    x, y = torch.rand(6, 12), torch.rand(12, 5)
    wrong = tried(mesh, ["S(0), R -> S(0)", "S(0), R -> R"], aten.mm.default, x, y)
    assert wrong.outcome == "refuted" and wrong.reason.startswith("output 0 is float64[")
    wrong = tried(mesh, ["P(sum), R -> P(sum)", "R, P(sum) -> R"], aten.mm.default, x, y)
    assert (wrong.outcome, wrong.reason) == ("refuted", "output 0 differs from that of the whole call")
    wrong = tried(mesh, ["S(1), R -> P(sum)", "R, R -> R"], aten.mm.default, x, y)
    assert wrong.outcome == "refuted" and wrong.reason.startswith("rank 0 raises: ")


def test_replicas_that_differ_are_refuted():
    """Ranks of the replicated axis hold different sums."""
    x = torch.rand(4, 4)
    assert tried(MESHES[0], ["S(0) -> P(sum)", "R -> R"], aten.sum.dim_IntList, x, [0])
    assert not tried(MESHES[0], ["S(0) -> P(sum)", "P(sum) -> R"], aten.sum.dim_IntList, x, [0])


def test_a_call_that_does_not_run_decides_nothing():
    call = tried(MESHES[0], ["R, R -> R", "R, R -> R"], aten.mm.default, torch.rand(4, 4), torch.rand(5, 4))
    assert call.outcome == "undecided" and "raises on the whole input" in call.reason


def test_tensors_that_are_written_to_count_as_results():
    x, y = torch.rand(4, 6), torch.rand(4, 6)
    rows = ["S(0), S(0) -> S(0)", "S(1), S(1) -> S(1)"]
    assert tried(MESHES[0], rows, aten.add_.Tensor, x, y)
    assert not tried(MESHES[0], ["R, P(sum) -> R", "S(1), S(1) -> S(1)"], aten.add_.Tensor, x, y)


def test_of_memory_as_it_was_found_shapes_are_compared():
    x = torch.rand(4, 6)
    assert tried(MESHES[0], ["S(0) -> S(0)", "S(1) -> S(1)"], aten.empty_like.default, x)
    assert not tried(MESHES[0], ["S(0) -> S(0)", "S(1) -> R"], aten.empty_like.default, x)
