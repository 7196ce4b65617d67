import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shardwise.graph import capture
from shardwise.graph._policy import DECOMPOSED, KEPT_WHOLE


@pytest.mark.parametrize(
    ("program", "whole"),
    [
        (lambda x: x.softmax(-1), "aten._softmax.default"),
        (nn.LayerNorm(4), "aten.native_layer_norm.default"),
        (nn.GroupNorm(2, 6), "aten.native_group_norm.default"),
        (nn.BatchNorm1d(6), "aten._native_batch_norm_legit_functional.default"),
        (nn.BatchNorm1d(6, track_running_stats=False), "aten._native_batch_norm_legit.no_stats"),
        (nn.Dropout(0.5), "aten.native_dropout.default"),
        (lambda x: F.linear(x[:, 0], x[:, 1], x[0, 0]), "aten.addmm.default"),
        (nn.RMSNorm(4), "shardwise.rms_norm.default"),
        (lambda x: F.scaled_dot_product_attention(x, x, x), "shardwise.attention.default"),
    ],
    ids=sorted(KEPT_WHOLE, key=lambda name: list(KEPT_WHOLE).index(name)),
)
def test_what_the_table_says_stays_whole_does(program, whole):
    graph = capture(program, (torch.randn(4, 6, 4, requires_grad=True),))
    assert whole in KEPT_WHOLE
    assert graph.ops[whole] == 1


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.log_softmax(1),
        lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], *x.shape[2:], dtype=torch.int64)),
        lambda x: F.cross_entropy(x.flatten(1), torch.zeros(x.shape[0], dtype=torch.int64)),
        nn.BatchNorm1d(6).eval(),
    ],
    ids=["log_softmax", "loss per position", "loss", "batch norm that does not train"],
)
def test_what_the_table_says_is_taken_apart_is(program):
    graph = capture(program, (torch.randn(4, 6, 4, requires_grad=True),))
    assert not set(DECOMPOSED) & set(graph.ops)
    assert not [node for node in graph.nodes if node.facts.identity or not node.outputs]
    assert not [op for op in graph.ops if "norm" in op or "nll" in op or "log_softmax" in op]
