"""Plans to draw, and a browser to look at them with."""

import shutil
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from shardwise import Plan, plan


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(1024)
        self.up = nn.Linear(1024, 4096)
        self.down = nn.Linear(4096, 1024)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


@pytest.fixture(scope="session")
def stack() -> Plan:
    """A plan of four blocks that shards parameters and moves tensors."""
    with torch.device("meta"):
        model, x = Stack(4), torch.empty(4096, 1024)
    return plan(model, (x,), mesh="dp=2,tp=2", cluster="h100", memory="250MB", share_layers=True)


@pytest.fixture(scope="session")
def browser() -> Iterator:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="no Playwright: `pip install playwright` to test pages in a browser"
    )
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no browser: `apt-get install chromium` to test pages in one")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()
