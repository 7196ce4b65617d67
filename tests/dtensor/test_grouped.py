"""Grouped products of DTensors, which torch runs only where every rank has all rows and all groups."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

import shardwise as sw
from shardwise.dtensor import layout_of, record_collectives, reset
from shardwise.errors import UsageError
from shardwise.placements import parse_placement

grouped = torch.ops.aten._grouped_mm.default


@pytest.fixture(autouse=True)
def clean():
    yield
    reset()


def b(*shape: int) -> torch.Tensor:
    """Small integers, whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).bfloat16()


ENDS = torch.tensor([3, 3, 11, 16], dtype=torch.int32)
OF_ROWS = (b(16, 8), b(4, 8, 24), ENDS)
OF_PAIRS = (b(16, 24).t(), b(16, 8), ENDS)
OF_COLUMNS = (b(4, 5, 8), b(16, 8).t(), ENDS)
STACKED = (b(4, 5, 8), b(4, 8, 16))

# What is given, the layout of the result, and the collectives that run.
CASES = {
    "rows": (OF_ROWS, "S(0)", "R", "R", "S(0)"),
    "groups": (OF_ROWS, "R", "S(0)", "R", "P(sum)"),
    "columns": (OF_ROWS, "R", "S(2)", "R", "S(1)"),
    "inner": (OF_ROWS, "S(1)", "S(1)", "R", "P(sum)"),
    "summed over": (OF_PAIRS, "S(1)", "S(0)", "R", "P(sum)"),
    "columns of pairs": (OF_PAIRS, "R", "S(1)", "R", "S(2)"),
    "runs of columns": (OF_COLUMNS, "R", "S(1)", "R", "S(1)"),
    "stacks of columns": (OF_COLUMNS, "S(0)", "R", "R", "P(sum)"),
    "batch": (STACKED, "S(0)", "S(0)", "S(0)"),
    "averages": (OF_ROWS, "P(avg)", "R", "R", "P(avg)"),
}


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_pieces_are_multiplied_where_they_are(name, ranks, simulated_ranks):
    args, *placed, result = CASES[name]
    with simulated_ranks(ranks):
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",))
        given = [
            distribute_tensor(t, mesh, [parse_placement(p.replace("P(avg)", "R"))], src_data_rank=None)
            for t, p in zip(args, placed, strict=True)
        ]
        given = [
            DTensor.from_local(t._local_tensor, mesh, [parse_placement(p)], run_check=False)
            if "avg" in p
            else t
            for t, p in zip(given, placed, strict=True)
        ]
        sw.install()
        with record_collectives() as seen:
            made = grouped(*given)
        assert not seen.collectives and [str(p) for p in layout_of(made).placements] == [
            str(parse_placement(result))
        ]
        whole = made.full_tensor()._local_tensors
    for each in whole.values():
        torch.testing.assert_close(each, grouped(*args))


def test_what_has_to_move_moves_once(simulated_ranks):
    """Tokens and experts sharded: one of them is gathered, whichever is less."""
    with simulated_ranks(4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("ep",))
        placed = [parse_placement(p) for p in ("S(0)", "S(0)", "R")]
        given = [
            distribute_tensor(t, mesh, [p], src_data_rank=None) for t, p in zip(OF_ROWS, placed, strict=True)
        ]
        sw.install()
        with record_collectives() as seen:
            made = grouped(*given)
        assert [each.kind for each in seen.collectives] == ["all_gather"]
        assert seen.collectives[0].size == OF_ROWS[0].nbytes  # rows are fewer than numbers of experts
        whole = made.full_tensor()._local_tensors
    torch.testing.assert_close(whole[0], grouped(*OF_ROWS))


def test_gradients_stay_where_they_are(simulated_ranks):
    with simulated_ranks(4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("ep",))
        layouts = [[parse_placement("S(0)")], [parse_placement("R")], [parse_placement("R")]]
        x, w, ends = (
            distribute_tensor(t, mesh, p, src_data_rank=None) for t, p in zip(OF_ROWS, layouts, strict=True)
        )
        x.requires_grad_(), w.requires_grad_()
        sw.install()
        with record_collectives() as seen:
            torch.nn.functional.grouped_mm(x, w, offs=ends).square().sum().backward()
        assert [str(p) for g in (x.grad, w.grad) for p in g.placements] == ["S(0)", "P(sum)"]
        assert not seen.collectives
        found = [g.full_tensor()._local_tensors[0] for g in (x.grad, w.grad)]
    tensors = [t.clone().requires_grad_() for t in OF_ROWS[:2]]
    grouped(*tensors, ENDS).square().sum().backward()
    for mine, whole in zip(found, tensors, strict=True):
        torch.testing.assert_close(mine, whole.grad)


def test_other_tensors_beside_dtensors_are_refused(simulated_ranks):
    with simulated_ranks(2):
        mesh = init_device_mesh("cpu", (2,))
        x, w = (distribute_tensor(t, mesh, [parse_placement("R")], src_data_rank=None) for t in OF_ROWS[:2])
        sw.install()
        with pytest.raises(UsageError, match="distribute all of them"):
            grouped(x, w, ENDS)
