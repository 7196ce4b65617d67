"""Linear layers captured as calls of their own."""

import pytest
import torch
from torch import Tensor, nn

import shardwise as sw
from shardwise.graph import has_layers
from shardwise.mesh import Cluster
from shardwise.planning import NamedLayout, tensor_parallel_plans


class MLP(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12, bias=bias), nn.Linear(12, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.down(self.up(x).relu()) - x).square().mean()


def layers(graph) -> list[str]:
    return [node.op.split(".")[1] for node in graph.nodes if "linear" in node.op]


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8), (2, 1, 3, 8)])
@pytest.mark.parametrize("bias", [True, False])
def test_layers_keep_the_dims_of_their_input(shape, bias):
    torch.manual_seed(0)
    model, x = MLP(bias), torch.randn(shape)
    graph = sw.capture(model, (x,), split_products=True)
    assert layers(graph) == ["linear"] * 3 + ["linear_weight"] * 2
    assert has_layers(graph) and not has_layers(sw.capture(model, (x,)))
    assert not [node for node in graph.nodes if "mm." in node.op]
    found, right = sw.graph.run(graph, model, (x,)), sw.graph.run(sw.capture(model, (x,)), model, (x,))
    torch.testing.assert_close(found.outputs, right.outputs)
    torch.testing.assert_close(found.gradients, right.gradients)


def test_what_is_frozen_has_no_gradient():
    model = MLP()
    model.up.weight.requires_grad_(False)
    graph = sw.capture(model, (torch.randn(2, 3, 8),), split_products=True)
    assert layers(graph) == ["linear"] * 3 + ["linear_weight"]


def test_autocast_decides_the_dtype_of_products():
    model, x = MLP(), torch.randn(2, 3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        graph = sw.capture(model, (x,), split_products=True)
    made = [node.outputs[0].dtype for node in graph.nodes if ".linear." in node.op]
    assert made and set(made) == {torch.bfloat16}


def test_a_vector_and_a_layer_stay_a_product():
    class Vector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).sum()

    assert not layers(sw.capture(Vector(), (torch.randn(8),), split_products=True))


def test_recomputing_counts_layers_as_products():
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(MLP() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return sum(layer(x) for layer in self.layers)

    def again(policy: str) -> int:
        graph = sw.capture(Deep(), (torch.randn(2, 3, 8),), split_products=True, recompute=policy)
        return sum(node.phase == "backward" for node in graph.nodes if ".linear." in node.op)

    counts = [again(policy) for policy in ("none", "selective", "full")]
    assert counts == [2, 4, 6]  # of each pair of products, selective recomputing keeps the first


def blocks(split: bool):
    with torch.device("meta"):
        model = nn.Sequential(*(Wide() for _ in range(2))).bfloat16()
        return sw.capture(model, (torch.empty(3, 4096, 1024, dtype=torch.bfloat16),), split_products=split)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(1024)
        self.up, self.down = nn.Linear(1024, 8192, bias=False), nn.Linear(8192, 1024, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


def test_layers_cost_what_their_products_do_and_less_if_they_are_split():
    layout, cluster = NamedLayout.parse("tp=4,sequence,split"), Cluster.preset("h100")
    given = layout, layout.mesh, cluster, "adam"
    whole, scattered, both = (plan.cost.seconds for plan in tensor_parallel_plans(blocks(True), *given))
    plain = tensor_parallel_plans(blocks(False), NamedLayout.parse("tp=4,sequence"), *given[1:])
    assert [plan.cost.seconds for plan in plain] == [pytest.approx(whole)]
    assert both <= scattered < 0.95 * whole


def test_a_split_step_sends_as_much():
    model = nn.Sequential(Wide(), Wide())
    prices = [
        sw.price(model, (torch.empty(8, 4096, 1024),), layout=f"dp=2,tp=4,sequence{word}", cluster="h100")
        for word in ("", ",split")
    ]
    assert prices[1].seconds < prices[0].seconds
    assert prices[1].time.tensor_parallel < prices[0].time.tensor_parallel
    kinds = [{t.collective for t in price.traffic if t.axis == "tp"} for price in prices]
    assert "permute" in kinds[1] - kinds[0]
    with pytest.raises(sw.UsageError, match="add sequence"):
        NamedLayout.parse("tp=2,split")
