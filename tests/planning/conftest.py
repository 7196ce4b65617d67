"""What the tests of planning share: models whose sizes make sharding pay, without memory behind them."""

import pytest
import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


@pytest.fixture
def make_mlp():
    def make(batch: int, width: int, hidden: int):
        with torch.device("meta"):
            return MLP(width, hidden), (torch.empty(batch, width, requires_grad=True),)

    return make
