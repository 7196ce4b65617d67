"""Small models that can be cut into stages, each with something that a cut has to respect."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Built = tuple[nn.Module, tuple[Any, ...]]


class Tied(nn.Module):
    """The weight of the last layer is that of the embedding, and dropout in between."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + self.dropout(layer(x).relu())
        return F.cross_entropy(self.head(x).flatten(0, 1), target.flatten())


class Skips(nn.Module):
    """What the first layer makes is used by the last, a buffer is written, and every layer reads a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.middle = nn.Conv2d(4, 6, 3, 2, 1)
        self.up = nn.ConvTranspose2d(6, 4, 2, 2)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        mask = (image.sum(1, keepdim=True) > 1).float()
        first = self.down(image)
        small = self.middle(first * mask).relu()
        return F.mse_loss(self.out(torch.cat([self.up(small) * mask, first], 1)), target)


class Frozen(nn.Module):
    """The first layers have no gradients, and numbers of one layer that are no floats are used by another."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.blocks[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        x = self.blocks[1](x).tanh()
        order = x.argmax(-1)
        x = self.blocks[2](x).tanh()
        x = self.blocks[3](x)
        return x.gather(-1, order[..., None]).square().mean()


class Turned(nn.Module):
    """What a layer makes is read across its strides: neither it nor its gradient is contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh().T
        return x.square().mean()


def tied() -> Built:
    torch.manual_seed(0)
    tokens = torch.randint(0, 16, (4, 6))
    return Tied(), (tokens, tokens.roll(-1, 1))


def skips() -> Built:
    torch.manual_seed(0)
    return Skips(), (torch.rand(4, 3, 8, 8), torch.rand(4, 3, 8, 8))


def frozen() -> Built:
    torch.manual_seed(0)
    return Frozen(), (torch.randn(6, 6),)


def turned() -> Built:
    torch.manual_seed(0)
    return Turned(), (torch.randn(6, 6),)


MODELS: dict[str, Callable[[], Built]] = {"tied": tied, "skips": skips, "frozen": frozen, "turned": turned}
