import json
import sys
from pathlib import Path

import pytest

from shardwise.graph import Graph

MODELS = Path(__file__).parents[2] / "examples" / "models.py"


def test_the_summary_is_printed_and_the_graph_written(shardwise, tmp_path):
    status, out, err = shardwise("capture", f"{MODELS}:build_mlp", "--out", tmp_path / "mlp.json")
    assert (status, err) == (0, "")
    assert "MLP: forward and backward" in out
    assert "written to" in out
    assert Graph.load(tmp_path / "mlp.json").training


def test_json_is_one_document_and_nothing_else(shardwise):
    _, out, _ = shardwise("capture", f"{MODELS}:build_mlp", "--inference", "--json")
    graph = Graph.from_json(json.loads(out))
    assert (graph.name, graph.training) == ("MLP", False)


def test_a_model_of_a_module_of_the_current_folder(shardwise, monkeypatch):
    monkeypatch.chdir(MODELS.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    status, out, _ = shardwise("capture", "models:build_mlp", "--inference")
    assert status == 0 and "MLP" in out


def test_a_loss_outside_of_the_model(shardwise, tmp_path):
    file = tmp_path / "outside.py"
    file.write_text(
        "import torch\n"
        "def build():\n"
        "    return torch.nn.Linear(4, 3), (torch.rand(5, 4),), {'target': torch.rand(5, 3)}\n"
    )
    status, out, _ = shardwise("capture", f"{file}:build", "--loss-fn", "torch.nn.functional:mse_loss")
    assert status == 0 and "inputs       input float32[5, 4], target float32[5, 3]" in out


def test_the_table_lists_every_node(shardwise):
    _, out, _ = shardwise("capture", f"{MODELS}:build_mlp", "--table")
    assert "aten.gelu_backward.default" in out


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ("models.py", "is not the name of a function"),
        ("absent.py:build", "there is no file absent.py"),
        (f"{MODELS}:build_nothing", "has no function build_nothing"),
        (f"{MODELS}:_no_dropout_kinds", "has no function"),
        ("{tmp}/wrong.py:build", "build returns int: it must return (model, args, kwargs)"),
        ("{tmp}/wrong.py:bare", "bare returns (builtin_function_or_method, Tensor, dict): it must return"),
        ("{tmp}/wrong.py:loop", "depends on tensor values"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(shardwise, tmp_path, build, message):
    (tmp_path / "wrong.py").write_text(
        "import torch\n"
        "def build(): return 1\n"
        "def bare(): return torch.neg, torch.rand(3), {}\n"
        "def program(x):\n"
        "    while x.sum() > 0: x = x - 1\n"
        "    return x\n"
        "def loop(): return program, (torch.randn(3, requires_grad=True),), {}\n"
    )
    status, out, err = shardwise("capture", build.format(tmp=tmp_path))
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
