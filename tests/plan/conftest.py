"""What the tests of planning share: models whose sizes make sharding pay, without memory behind them."""

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    """Rows discovered on the spot are kept for the session, not for the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDWISE_CACHE", str(tmp_path_factory.mktemp("rows")))
        yield


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
