"""Every node of a graph has a rule, derived from the rows of its call: in the table, and in the JSON form."""

import pytest
import torch
import torch.nn.functional as F

from shardwise.factors import FactorRule
from shardwise.graph import Graph, capture
from shardwise.rules import book_rows

X = torch.randn(4, 6, 8)


@pytest.mark.parametrize(
    ("program", "args", "op", "notation"),
    [
        (lambda x: x.view(24, 8), (X,), "aten.view.default", "i k j -> (i k) j"),
        (lambda x: x.reshape(4, 6, 2, 4), (X,), "aten.view.default", "i j (k l) -> i j k l"),
        (lambda x: x[:, :1].expand(4, 6, 8), (X,), "aten.expand.default", "i 1 k -> i j k"),
        (lambda x: x.select(1, 2), (X,), "aten.select.int", "i k j -> i j"),
        (lambda x: x.transpose(0, 2), (X,), "aten.transpose.int", "k j i -> i j k"),
        (
            lambda x, w, b: F.layer_norm(x, (8,), w, b),
            (X, torch.ones(8), torch.zeros(8)),
            "aten.native_layer_norm.default",
            "i j 1, 1, 1 -> i j 1, i j 1, i j 1",
        ),
        (
            F.embedding,
            (torch.randint(0, 9, (4, 6)), torch.randn(9, 8)),
            "aten.embedding.default",
            "l k, i j -> i j k",
        ),
        (
            F.conv2d,
            (torch.randn(4, 2, 9, 9), torch.randn(6, 2, 3, 3)),
            "aten.convolution.default",
            "i k 1 1, j k 1 1 -> i j 1 1",
        ),
        (torch.softmax, (X, -1), "aten._softmax.default", "i j 1 -> i j 1"),
    ],
)
def test_calls_of_every_kind_print_a_rule(program, args, op, notation):
    graph = capture(program, args, training=False)
    [node] = [node for node in graph.nodes if node.op == op]
    assert graph.rule(node).notation == notation
    assert notation in " ".join(graph.table().split())


def test_the_json_form_has_the_rule_of_every_node():
    graph = capture(lambda x, w: (x @ w).softmax(-1), (X, torch.randn(8, 5)), training=False)
    document = graph.to_json()
    assert len(document["nodes"]) == len(graph.nodes) > 2
    for entry, node in zip(document["nodes"], graph.nodes, strict=True):
        assert FactorRule.parse(entry["rule"]).rows() == book_rows(graph.call(node))
    assert Graph.from_json(document) == graph


def test_a_call_that_the_book_does_not_know_has_no_rule(models):
    model, args, kwargs = models.build_custom_op()
    graph = capture(model, args, kwargs, training=False)
    own = [entry for entry in graph.to_json()["nodes"] if not entry["op"].startswith(("aten", "shardwise"))]
    assert own and all(entry["rule"] is None for entry in own)
    assert Graph.from_json(graph.to_json()) == graph
