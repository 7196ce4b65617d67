import json

import pytest
import torch
from torch import nn

from shardwise.errors import UsageError
from shardwise.graph import Graph, Ref, TensorInfo, capture


def program(x, indices):
    y = x.masked_fill(x > 0, float("-inf")).to(torch.float64)
    first, second = torch.split(y, [1, 2])
    z = torch.cat([first, second, torch.full((1, 4), float("nan"), dtype=torch.float64)])
    return z.contiguous(memory_format=torch.contiguous_format)[indices].t(), torch.fft.fft(x)


def test_every_kind_of_argument_survives(tmp_path):
    x = torch.randn(3, 4, requires_grad=True)
    graph = capture(program, (x, torch.tensor([0, 2])))
    graph.save(tmp_path / "graph.json")
    text = (tmp_path / "graph.json").read_text()
    json.loads(text, parse_constant=pytest.fail)  # no NaN or Infinity, which JSON does not have
    loaded = Graph.load(tmp_path / "graph.json")
    # NaN is not equal to itself: compare as text.
    for part in ("inputs", "nodes", "outputs"):
        assert repr(getattr(loaded, part)) == repr(getattr(graph, part))
    assert loaded.live is None
    assert str(loaded) == str(graph)
    for node in loaded.nodes:
        assert str(node.overload) == node.op


def test_tensors_are_named_by_node_and_output():
    graph = capture(lambda x: torch.aminmax(x, dim=0).max.sum(), (torch.randn(3, 4),), training=False)
    document = graph.to_json()
    total = next(node for node in document["nodes"] if node["op"] == "aten.sum.default")
    assert total["args"] == [{"%": "aminmax", "output": 1}]
    assert graph["sum_1"].inputs == (Ref("aminmax", 1),)
    assert document["nodes"][0]["outputs"][1] == {"shape": [4], "dtype": "float32"}


def test_strides_are_kept_where_a_tensor_is_not_contiguous():
    graph = capture(nn.Linear(3, 5), (torch.randn(2, 3),))
    assert Graph.from_json(graph.to_json())["t"].outputs == (TensorInfo((3, 5), torch.float32, (1, 3)),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1", "is not valid JSON"),
        ("{}", "is not a captured graph"),
        (
            '{"format": "shardwise.graph/1", "name": "m", "execution": "eager"}',
            "expected the field 'training'",
        ),
        (
            '{"format": "shardwise.graph/1", "name": "m", "training": true, "execution": "eager", "recompute": {}, '
            '"inputs": 3, "nodes": [], "outputs": []}',
            "inputs: expected a list, found 3",
        ),
    ],
)
def test_what_is_no_graph_is_refused(tmp_path, text, message):
    (tmp_path / "graph.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        Graph.load(tmp_path / "graph.json")


def test_a_missing_file():
    with pytest.raises(UsageError, match=r"absent.json cannot be read"):
        Graph.load("absent.json")


def test_an_operator_that_is_not_registered_is_named():
    graph = capture(nn.Linear(3, 3), (torch.randn(2, 3),))
    document = graph.to_json()
    document["nodes"][0]["op"] = "elsewhere.op.default"
    with pytest.raises(UsageError, match=r"no operator is registered as 'elsewhere.op.default'"):
        _ = Graph.from_json(document).nodes[0].overload


def test_a_graph_whose_kernels_give_other_dtypes_than_fake_tensors_is_read_again():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph = capture(model, (torch.rand(4, 8),))
    assert Graph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize(
    "shapes", [((4, 1, 6, 2, 8),) * 2, ((4, 1, 6, 2, 8), (4, 1, 9, 2, 8)), ((1, 1, 1, 1, 3),) * 2]
)
def test_a_graph_with_dims_of_one_element_is_read_again(shapes):
    """Of these, strides say nothing, and what computes them differs from call to call."""

    def program(queries, keys):
        scores = torch.einsum("...qhd,...khd->...hqk", queries, keys)
        return scores, torch.einsum("...hqk,...khd->...qhd", scores.softmax(-1), keys).mT

    args = [torch.randn(shape, requires_grad=True) for shape in shapes]
    graph = capture(program, args)
    assert Graph.from_json(graph.to_json()) == graph


def test_a_call_that_gives_another_shape_is_named():
    document = capture(nn.Linear(8, 4), (torch.rand(2, 8),), training=False).to_json()
    document["nodes"][0]["outputs"][0]["shape"] = [5, 5]
    with pytest.raises(
        UsageError, match=r"^nodes\[0\]\.outputs: expected float32\[.*, found float32\[5, 5\]"
    ):
        Graph.from_json(document)
