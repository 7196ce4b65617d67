"""Checkpoints of safetensors files: every rank reads its pieces, and nothing else."""

import json

import pytest
import torch
from safetensors.torch import save_file

from shardwise.errors import UsageError
from shardwise.graph import Input, TensorInfo
from shardwise.layout import Layout
from shardwise.running import Checkpoint


@pytest.fixture
def tensors(tmp_path):
    made = {"weight": torch.arange(63.0).reshape(9, 7), "other": torch.ones(3), "number": torch.tensor(4.0)}
    for name, tensor in made.items():
        save_file({name: tensor}, tmp_path / f"{name}.safetensors")
    return made


def entry(target, shape, dtype=torch.float32, aliases=()):
    return Input("p", "parameter", target, TensorInfo(shape, dtype), aliases=aliases)


@pytest.mark.parametrize("text", ["R, R", "S(0), R", "S(1), S(0)", "S(0), S(0)", "S(1), S(1)", "R, S(1)"])
def test_a_piece_is_that_of_the_layout(tmp_path, tensors, text):
    layout = Layout.parse(text, "a=2,b=2")
    checkpoint = Checkpoint(tmp_path)
    pieces = [checkpoint.piece("weight", entry("weight", (9, 7)), layout, rank) for rank in range(4)]
    for rank, piece in enumerate(pieces):
        assert torch.equal(piece, layout.piece(tensors["weight"], rank))
    assert checkpoint.read == sum(piece.nbytes for piece in pieces)


def test_the_dtype_is_the_models(tmp_path, tensors):
    half = Checkpoint(tmp_path).piece(
        "weight", entry("weight", (9, 7), torch.bfloat16), Layout.parse("S(0)", "a=3"), 1
    )
    assert torch.equal(half, tensors["weight"][3:6].bfloat16())


def test_a_number(tmp_path, tensors):
    assert Checkpoint(tmp_path).piece("number", entry("number", ()), Layout.parse("R", "a=2"), 1) == 4.0


def test_a_tied_tensor_may_go_by_any_of_its_names(tmp_path, tensors):
    assert Checkpoint(tmp_path).key(entry("head.weight", (3,), aliases=("other",))) == "other"
    assert Checkpoint(tmp_path, {"head.weight": "weight"}).key(entry("head.weight", (3,))) == "weight"
    assert Checkpoint(tmp_path).key(entry("head.weight", (3,))) is None


def test_another_shape(tmp_path, tensors):
    with pytest.raises(UsageError, match=r"other of .* has the shape \[3\], but 'o' of the model \[4\]"):
        Checkpoint(tmp_path).piece("other", entry("o", (4,)), Layout.parse("R", "a=2"), 0)


def test_a_file_that_is_not_one(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"not one")
    with pytest.raises(UsageError, match="is not a safetensors file"):
        Checkpoint(tmp_path)


def test_files_that_the_index_does_not_name_do_not_count(tmp_path, tensors):
    """They may be left of a checkpoint that was written before with more files."""
    save_file({"weight": torch.zeros(9, 7)}, tmp_path / "z-old.safetensors")
    index = {"weight_map": {"weight": "weight.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = Checkpoint(tmp_path).piece("weight", entry("weight", (9, 7)), Layout.parse("R", "a=2"), 0)
    assert torch.equal(found, tensors["weight"])
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UsageError, match="expected the field 'weight_map'"):
        Checkpoint(tmp_path)


def test_a_tensor_in_two_files_is_not_chosen_from(tmp_path, tensors):
    save_file({"weight": torch.zeros(9, 7)}, tmp_path / "z-old.safetensors")
    with pytest.raises(UsageError, match=r"has weight in weight\.safetensors and in z-old\.safetensors"):
        Checkpoint(tmp_path)
