"""Plans on four real ranks: processes that talk through gloo on the loopback interface."""

import json
import math
import re
from pathlib import Path
from shutil import which

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import shardwise as sw
from shardwise.expansion import Choice
from shardwise.mesh import Mesh
from shardwise.modules import module_of
from shardwise.rules import rows_besides
from shardwise.verification import on_ranks
from tests.forms.cases import CALLS, call_of

JOBS = Path(__file__).parent / "jobs.py"


@pytest.fixture(scope="module")
def jobs():
    return module_of(JOBS, "runtime_jobs")


NEEDS_CXX = pytest.mark.skipif(which("c++") is None, reason="Inductor needs a C++ compiler")


def start(function, *args, ranks=4, timeout=240):
    return on_ranks(function, *args, ranks=ranks, timeout=timeout, files={"runtime_jobs": str(JOBS)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoint")


@pytest.fixture(scope="module")
def ranks(jobs, folder):
    return start(jobs.run, str(folder), 0)


def test_training_is_that_of_the_model(ranks):
    seen = ranks[0]["training"]
    for loss, expected, norm, expected_norm in seen["losses"]:
        assert loss == pytest.approx(expected, rel=1e-5)
        assert norm == pytest.approx(expected_norm, rel=1e-5)
    assert seen["losses"][2][0] < seen["losses"][0][0]
    assert max(seen["apart"].values()) < 1e-6
    assert seen["names"] == ["up.weight", "up.bias", "down.weight", "down.bias"]
    assert seen["state"] == sorted(seen["names"])  # the buffer is not persistent
    assert seen["types"] == {"DTensor"}


def test_what_runs_is_what_was_priced(ranks):
    seen = ranks[0]["training"]
    assert seen["sent"] == seen["priced"] and len(seen["sent"]) > 5
    assert seen["bytes"] == seen["priced bytes"]
    assert all(rank["training"]["sent"] == seen["sent"] for rank in ranks)


@pytest.mark.parametrize("name", CALLS)
def test_rows_whose_ranks_communicate(ranks, name):
    call = call_of(name)
    rows = rows_besides(call)
    assert rows
    for row in rows:
        layouts = Choice(Mesh.parse("a=4"), (row,)).output_layouts
        pieces = zip(*(rank["rows"][name, row.text] for rank in ranks), strict=True)
        for whole, layout, parts in zip(call.run(), layouts, pieces, strict=True):
            if layout is not None:
                close = {"rtol": 0.05, "atol": 0.05} if whole.dtype == torch.bfloat16 else {}
                torch.testing.assert_close(layout.join(parts), whole, **close)


def test_the_program_reads_as_the_plan_does(ranks):
    lines = ranks[0]["training"]["program"].splitlines()
    assert lines[0].startswith("def forward(") and any(line.startswith("def backward(") for line in lines)
    assert any("_c10d_functional.all_gather_into_tensor.default" in line for line in lines)
    assert any(line.strip().startswith("# %") and "->" in line for line in lines)


def test_parameters_with_homes_train_as_the_model_does(ranks):
    for rank in ranks:
        seen = rank["homes"]
        assert all(seen["moves"])
        for how in (("foreach", False), ("foreach", True), ("fused", True)):
            assert max(seen[how]) < 1e-5, how
        assert seen["states"] == seen["parameters"] and any("Shard" in text for text in seen["states"])
        assert seen["changed"] and abs(seen["loaded"]) < 1e-6
        assert "after 1 of the 3 passes" in seen["too early"]


def test_arguments_may_be_whole_pieces_or_dtensors(ranks):
    assert ranks[0]["arguments"] == pytest.approx([ranks[0]["arguments"][-1]] * 5, rel=1e-5)


def test_a_model_on_the_meta_device_is_loaded_from_checkpoints(ranks, folder):
    for rank in ranks:
        seen = rank["loaded"]
        assert seen["same"] and seen["same by a table"] and seen["same by torch"]
        assert "saved has no 'up.weight'" in seen["missing"] and "`rename`" in seen["missing"]
        assert "nowhere is not a checkpoint" in seen["no checkpoint"]


def test_a_checkpoint_is_written_as_hugging_face_does(ranks, folder):
    index = json.loads((folder / "saved" / "model.safetensors.index.json").read_text())
    files = {name: load_file(folder / "saved" / name) for name in set(index["weight_map"].values())}
    assert len(files) > 1
    assert {key: file for file, held in files.items() for key in held} == index["weight_map"]
    assert index["metadata"]["total_size"] == sum(t.nbytes for held in files.values() for t in held.values())
    assert sorted(index["weight_map"]) == [
        f"model.{layer}.{name}" for layer in ("down", "up") for name in ("bias", "weight")
    ]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # which is meant: one process, no group
def test_a_checkpoint_of_one_mesh_loads_on_another_and_on_none(ranks, folder, jobs):
    loaded = ranks[0]["checkpoint"]
    assert loaded["changed"]
    model, args = jobs.example()
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=f"{folder}/step", no_dist=True)
    for name, tensor in state["model"].items():
        torch.testing.assert_close(loaded["state"][name], tensor, rtol=0, atol=0)
    assert model(*args).item() == pytest.approx(loaded["loss"], rel=1e-5)


def test_weights_can_be_drawn_when_the_model_is_placed(ranks):
    assert all(rank["deferred"]["same"] for rank in ranks)
    assert ranks[0]["deferred"]["spread"] == pytest.approx(1 / math.sqrt(30), rel=0.2)
    assert "scale has no values" in ranks[0]["deferred"]["missing"]
    assert "places has no values" in ranks[0]["deferred"]["missing integers"]
    assert ranks[0]["deferred"]["empty"] == [1]


def test_weights_of_the_first_rank_reach_models_without_any(ranks):
    assert all(rank["deferred"]["received"] for rank in ranks)


def test_tensors_move_between_meshes(ranks):
    for rank in ranks:
        seen = rank["transfer"]
        assert all(seen["right"]), seen["right"]
        assert seen["senders"] == [0, 1]
        assert seen["summed"]
        assert seen["state"] == [3, True]
        assert seen["largest"] == 64 * 64 // 4  # the new piece: no rank ever holds more of it in one place


def test_a_mapped_function_takes_and_gives_dtensors(ranks):
    for rank in ranks:
        seen = rank["shard_map"]
        assert seen["apart"] < 1e-5
        assert seen["layout"] == ["S(0)", "R"]
        assert seen["gradient apart"] < 1e-5
    assert [rank["shard_map"]["planned"] for rank in ranks] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            "mesh",
            "making the mesh failed on rank 0 .*mesh dp=2,tp=4 has 8 ranks, but 4 processes were started",
        ),
        ("plan", "capturing the model failed on rank 0 .*the plan is for another model"),
        ("plan mesh", "the plan is for mesh dp=2,tp=2, but the model runs on d=4"),
        ("shape", r"argument 'x' is float32\[4, 10\], but was planned as float32\[8, 10\]"),
        ("dtype", r"argument 'x' is float64\[8, 10\], but was planned as float32\[8, 10\]"),
        ("form", r"\(\*, \*, \*\), but was captured with \(\*, \*\)"),
        ("lowering", "lowering failed on rank 2: MemoryError: no room"),
        ("drawing", "initialising the weights failed on rank 1: ValueError: no weights today"),
        ("mapped", "planning failed on rank 0: in_specs has 2 entries"),
        ("later", "^RuntimeError: out of memory$"),
        ("options", "memory cannot be combined with `plan`: they are options for making one"),
        ("init", "init is 'zeros': give a function that initialises a module, or 'empty'"),
    ],
)
def test_a_mistake_raises_on_every_rank(ranks, mistake, message):
    for rank in ranks:
        assert re.search(message, rank["faults"][mistake]), rank["faults"][mistake]


@pytest.mark.parametrize("mistake", ["half", "half mapped"])
def test_a_mesh_without_all_processes_is_refused_where_the_others_do_not_come(ranks, mistake):
    for rank in ranks[:2]:
        assert rank["faults"][mistake] == (
            "the mesh has 2 of the 4 processes: a model runs on all of them; give a mesh that has them all"
        )


@pytest.mark.long
def test_a_rank_that_stops_in_a_step_stops_the_others_and_says_why(jobs):
    with pytest.raises(sw.UsageError, match=r"argument 'x' is float32\[4, 10\]"):
        start(jobs.one_rank_stops, 0, timeout=120)


def test_the_first_error_is_shown_not_the_connections_that_close_after_it(jobs):
    with pytest.raises(RuntimeError, match=r"(?s)on rank 0:.*ArithmeticError: the first error"):
        start(jobs.one_rank_raises, ranks=2)


def test_a_rank_that_is_killed_is_named(jobs):
    with pytest.raises(RuntimeError, match="rank 1 ended with status -9"):
        start(jobs.one_rank_is_killed, ranks=2)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=NEEDS_CXX)])
def test_the_program_can_be_compiled(jobs, backend):
    plain, *others = start(jobs.compiled, 0, backend, ranks=2, timeout=600)[0]
    assert len(others) == 4
    for other in others:
        assert other == pytest.approx(plain, rel=1e-5)


def test_a_gather_and_a_matrix_product_are_under_way_at_once(ranks):
    begun = ranks[0]["overlap"]["events"]
    gathers = [event for event in begun if event[0] == "all_gather_into_tensor"]
    for rank in ranks[1:]:
        seen = rank["overlap"]["events"]
        second = [event for event in seen if event[0] == "all_gather_into_tensor"][1]
        product = next(event for event in seen if event[0] == "mm")
        # The second gather was begun here before the product, and ended nowhere before the first rank began it.
        assert second[2] < product[1] < product[2] < gathers[1][1]


def test_collectives_beside_calls_give_the_same_numbers(ranks):
    for seen in (rank["overlap"] for rank in ranks):
        loss, expected = seen["losses"]
        assert loss == expected and seen["apart"] == 0


def test_arguments_come_from_a_loader_and_results_go_to_another_rank(ranks):
    for seen in (rank["elsewhere"] for rank in ranks):
        assert seen["right"] and seen["ranks"] == [3] and seen["transfer"] > 0
