from dataclasses import replace

import pytest
import torch
from torch import nn

from shardwise import Cluster
from shardwise.graph import capture
from shardwise.planning import Offers, random_plan


class MLP(nn.Module):
    """Sizes that divide by nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(10, 18)
        self.down = nn.Linear(18, 6)

    def forward(self, x, target):
        return ((self.down(self.up(x).relu()) - target) ** 2).mean()


@pytest.fixture(scope="session")
def mlp():
    """A model, its arguments, its graph and the rows of its nodes."""
    torch.manual_seed(0)
    model, args = MLP(), (torch.randn(8, 10), torch.randn(8, 6))
    graph = capture(model, args)
    return model, args, graph, Offers(graph)


@pytest.fixture
def plan_of():
    """`plan_of(graph, mesh, seed)`: a random plan."""

    def make(graph, mesh, seed=0, offers=None):
        return random_plan(graph, mesh=mesh, seed=seed, offers=offers)

    return make


@pytest.fixture(scope="session")
def slow_devices():
    """A cluster on which sharding pays even for tiny models."""
    laptop = Cluster.preset("laptop")
    flops = dict.fromkeys(laptop.device.flops, 1e8)
    return replace(laptop, name="slow", device=replace(laptop.device, flops=flops, memory_bandwidth=1e8))
