"""In reduced and mixed precision, captured tensors have the dtypes and sizes that kernels give them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import shardwise as sw
from shardwise.graph import Graph, Ref, capture


def of_images(x):
    return x.reshape(2, 8, 3, 2)


CASES = {
    "layer_norm": lambda x, w: F.layer_norm(x, (6,), w[:6], w[:6]),
    "layer_norm without parameters": lambda x, w: F.layer_norm(x, (6,)),
    "group_norm": lambda x, w: F.group_norm(of_images(x), 2, w, w),
    "group_norm without parameters": lambda x, w: F.group_norm(of_images(x), 2),
    "batch_norm": lambda x, w: F.batch_norm(of_images(x), None, None, w, w, training=True),
    "instance_norm": lambda x, w: F.instance_norm(of_images(x), weight=w, bias=w),
    "rms_norm": lambda x, w: F.rms_norm(x, (6,), w[:6].to(x.dtype)),
    "attention": lambda x, w: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
    "cross_entropy": lambda x, w: F.cross_entropy(x.flatten(0, 1), torch.arange(16) % 6),
    "weight_norm": lambda x, w: torch._weight_norm(x[0], w[:, None].to(x.dtype), 0),
    "softmax": lambda x, w: x.softmax(-1),
    "var": lambda x, w: x.var(-1) + x.std(-1),
}


def values_of(graph: Graph, given: dict[str, torch.Tensor]) -> dict[Ref, torch.Tensor]:
    """Every tensor of a graph, from running its calls one by one with torch's kernels."""
    values = {Ref(entry.name): given[entry.name] for entry in graph.inputs}
    for node in graph.nodes:
        made = graph.call(node).with_tensors([values[ref] for ref in node.inputs])()
        for position, value in enumerate(made if isinstance(made, tuple | list) else (made,)):
            values[Ref(node.name, position)] = value
    return values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mixed", [False, True], ids=["alike", "mixed"])
@pytest.mark.parametrize("name", CASES)
def test_captured_tensors_are_what_kernels_return(name, mixed, dtype):
    x = torch.randn(2, 8, 6, dtype=dtype, requires_grad=True)
    w = torch.ones(8, dtype=torch.float32 if mixed else dtype, requires_grad=True)
    graph = capture(lambda x, w: CASES[name](x, w).float().square().sum(), (x, w))
    given = {e.name: torch.ones(e.tensor.shape, dtype=e.tensor.dtype) for e in graph.inputs}
    for ref, value in values_of(graph, given).items():
        if isinstance(value, torch.Tensor):
            captured = graph.tensor(ref)
            assert (captured.shape, captured.dtype) == (tuple(value.shape), value.dtype), ref


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.norm(self.linear(x)).float().square().mean()


def test_under_autocast_a_plan_counts_the_bytes_that_run():
    model, x = Block(), torch.randn(4, 6, 8)
    assert sw.verify(model, (x,), plan=sw.plan(model, (x,), mesh="d=2", cluster="laptop")).ok
