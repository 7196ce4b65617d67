import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from shardwise.calls import Call
from shardwise.graph import TensorInfo, capture, cost

aten = torch.ops.aten


def info(*shape, dtype=torch.float32, stride=None):
    return TensorInfo(shape, dtype, stride)


@pytest.mark.parametrize(
    ("op", "args", "outputs", "flops", "moved"),
    [
        (aten.mm.default, (info(32, 64), info(64, 128)), (info(32, 128),), 2 * 32 * 64 * 128, 4 * 14336),
        (aten.add.Tensor, (info(4, 8), info(4, 8)), (info(4, 8),), 32, 4 * 96),
        (aten.sum.dim_IntList, (info(4, 8), (1,)), (info(4),), 32, 4 * 36),
        (aten.view.default, (info(4, 8), (32,)), (info(32),), 0, 0),
        (aten.t.default, (info(4, 8),), (info(8, 4),), 0, 0),
        (aten._unsafe_view.default, (info(4, 8), (32,)), (info(32),), 0, 0),
        (aten.add.Tensor, (info(4, 8, stride=(0, 1)), 1), (info(4, 8),), 32, 4 * (8 + 32)),
        (
            aten.embedding.default,
            (info(1000, 8), info(6, dtype=torch.int64)),
            (info(6, 8),),
            48,
            2 * 4 * 48 + 8 * 6,
        ),
        (aten.cat.default, ((info(2, 3), info(4, 3)), 0), (info(6, 3),), 18, 4 * 36),
    ],
)
def test_flops_and_bytes(op, args, outputs, flops, moved):
    assert cost(Call(op, args), outputs) == (flops, moved)


def test_a_convolution_and_its_backward():
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    graph = capture(lambda x, w: torch.conv2d(x, w), (x, weight))
    flops = {node.op: node.flops for node in graph.nodes}
    assert flops["aten.convolution.default"] == 2 * 2 * 4 * 36 * 27
    assert flops["aten.convolution_backward.default"] == 2 * flops["aten.convolution.default"]


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "pairs"),
    [(6, 6, False, 36), (6, 6, True, 21), (4, 6, True, 10), (6, 4, True, 10 + 8)],
)
def test_attention_counts_the_pairs_that_are_attended_to(queries, keys, causal, pairs):
    query, key, value = info(2, 4, queries, 8), info(2, 2, keys, 8), info(2, 2, keys, 5)
    rest = (None, None, causal, 1.0, 0.0)
    outputs = (info(2, 4, queries, 5), info(2, 4, queries))
    forward, _ = cost(Call.of(torch.ops.shardwise.attention.default, query, key, value, *rest), outputs)
    assert forward == 2 * 8 * pairs * (8 + 5)
    args = (outputs[0], query, key, value, *outputs, *rest)
    backward, _ = cost(Call(torch.ops.shardwise.attention_backward.default, args), (query, key, value))
    assert backward == 2 * 8 * pairs * (3 * 8 + 2 * 5)


@pytest.mark.parametrize("name", ["mlp", "cnn", "unet", "recommender"])
def test_products_and_convolutions_are_those_that_run(models, name):
    model, args, kwargs = models.ZOO[name]()
    graph = capture(model, args, kwargs)
    counted = sum(node.flops for node in graph.nodes if node.overload.overloadpacket in flop_registry)
    with FlopCounterMode(display=False) as counter:
        result = model(*args, **kwargs)
        (result["loss"] if isinstance(result, dict) else result).backward()
    assert counted == counter.get_total_flops()
