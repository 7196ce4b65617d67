"""Tiny architectures, one for each kind of layer.

    shardwise verify examples/zoo.py:attention --mesh dp=2,tp=2 --random 3

Every function listed in `ZOO` takes no arguments and returns `(model, args, kwargs)`. Each runs in milliseconds.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
ZOO: dict[str, Callable[[], Built]] = {}


def _model(build: Callable[[], Built]) -> Callable[[], Built]:
    ZOO[build.__name__] = build
    return build


class Squared(nn.Module):
    """A model trained on the mean of its squared outputs, weighted by position."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, *args: Tensor) -> Tensor:
        out = self.body(*args)
        out = out[0] if isinstance(out, tuple) else out
        weights = torch.arange(1, out.shape[-1] + 1, dtype=out.dtype) / out.shape[-1]
        return (out * weights).square().mean()


class Of(nn.Module):
    """A layer followed by a function."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(layers)

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(self.layers, *args)


def _squared(body: nn.Module, *shape: int) -> Built:
    return Squared(body), (torch.randn(*shape),), {}


def _of(function: Callable[..., Tensor], *layers: nn.Module, shape: tuple[int, ...]) -> Built:
    return _squared(Of(function, *layers), *shape)


# -- linear layers


@_model
def linear() -> Built:
    return _squared(nn.Linear(8, 16), 8, 8)


@_model
def linear_without_bias() -> Built:
    return _squared(nn.Linear(8, 16, bias=False), 8, 8)


@_model
def uneven_linear() -> Built:
    return _squared(nn.Linear(10, 18), 6, 10)


@_model
def batch_of_one() -> Built:
    return _squared(nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 4)), 1, 8)


@_model
def mlp() -> Built:
    return _squared(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)), 8, 8)


@_model
def deep_mlp() -> Built:
    return _squared(nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(8, 8), nn.Tanh()))), 8, 8)


@_model
def residual() -> Built:
    return _of(lambda m, x: x + m[1](F.gelu(m[0](x))), nn.Linear(8, 16), nn.Linear(16, 8), shape=(8, 8))


@_model
def diamond() -> Built:
    return _of(lambda m, x: (m[0](x) + 1) @ (m[0](x) * 2).mT, nn.Linear(8, 12), shape=(8, 8))


@_model
def gated() -> Built:
    layers = (nn.Linear(8, 20, bias=False), nn.Linear(8, 20, bias=False), nn.Linear(20, 8, bias=False))
    return _of(lambda m, x: m[2](F.silu(m[0](x)) * m[1](x)), *layers, shape=(4, 6, 8))


@_model
def bilinear() -> Built:
    return _of(lambda m, x: m[0](x, x.flip(0)), nn.Bilinear(6, 6, 5), shape=(8, 6))


@_model
def tied_weights() -> Built:
    embed, out = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
    out.weight = embed.weight
    model = Of(
        lambda m, tokens: F.cross_entropy(m[1](m[0](tokens)).flatten(0, 1), tokens.flatten()), embed, out
    )
    return model, (torch.randint(0, 20, (4, 6)),), {}


@_model
def low_rank() -> Built:
    base, down, up = nn.Linear(8, 12), nn.Linear(8, 2, bias=False), nn.Linear(2, 12, bias=False)
    base.requires_grad_(False)
    return _of(lambda m, x: m[0](x) + 0.5 * m[2](m[1](x)), base, down, up, shape=(8, 8))


# -- convolutions


@_model
def convolution() -> Built:
    return _squared(nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)), 4, 4, 8, 8)


@_model
def strided_convolution() -> Built:
    return _squared(nn.Conv2d(3, 8, 3, stride=2), 4, 3, 9, 9)


@_model
def grouped_convolution() -> Built:
    return _squared(
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=4), nn.Conv2d(8, 8, 3, groups=8)), 4, 8, 6, 6
    )


@_model
def convolution_1d() -> Built:
    return _squared(nn.Conv1d(4, 6, 3, padding=2, dilation=2), 4, 4, 12)


@_model
def transposed_convolution() -> Built:
    return _squared(nn.ConvTranspose2d(4, 6, 2, stride=2), 4, 4, 5, 5)


@_model
def batch_norm() -> Built:
    return _squared(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), 8, 3, 6, 6)


@_model
def group_norm() -> Built:
    return _squared(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.SiLU()), 4, 3, 6, 6)


@_model
def layer_norm() -> Built:
    return _squared(nn.Sequential(nn.Linear(8, 12), nn.LayerNorm(12), nn.Linear(12, 8)), 4, 6, 8)


@_model
def rms_norm() -> Built:
    return _squared(nn.Sequential(nn.Linear(8, 12), nn.RMSNorm(12), nn.Linear(12, 8)), 4, 6, 8)


@_model
def pooling() -> Built:
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
    )
    return _squared(body, 4, 3, 8, 8)


@_model
def upsampling() -> Built:
    up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
    return _squared(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), up, nn.Conv2d(4, 3, 1)), 4, 3, 5, 5)


@_model
def unfold() -> Built:
    return _of(lambda m, x: m[0](F.unfold(x, 3).mT), nn.Linear(27, 6), shape=(4, 3, 6, 6))


@_model
def pixel_shuffle() -> Built:
    return _squared(nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.PixelShuffle(2)), 4, 3, 4, 4)


# -- sequences


@_model
def lstm() -> Built:
    return _squared(nn.LSTM(6, 8, batch_first=True), 4, 5, 6)


@_model
def gru() -> Built:
    return _squared(nn.GRU(6, 8, batch_first=True), 4, 5, 6)


@_model
def attention() -> Built:
    return _of(
        lambda m, x: m[0](x, x, x, need_weights=False)[0],
        nn.MultiheadAttention(8, 4, batch_first=True),
        shape=(4, 6, 8),
    )


class Block(nn.Module):
    """A transformer block: causal attention and an MLP, each after a normalisation."""

    def __init__(self, width: int = 8, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, positions, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, positions, width))
        return x + F.dropout(self.down(F.gelu(self.up(self.after(x)))), self.dropout)


@_model
def transformer_block() -> Built:
    return _squared(Block(), 4, 6, 8)


@_model
def attention_dropout() -> Built:
    return _squared(Block(dropout=0.2), 4, 6, 8)


@_model
def decoder() -> Built:
    """An embedding, two blocks and a loss over an odd vocabulary."""

    def forward(layers: nn.ModuleList, tokens: Tensor) -> Tensor:
        x = layers[0](tokens) + layers[1](torch.arange(tokens.shape[1]))
        for block in layers[2:4]:
            x = block(x)
        return F.cross_entropy(layers[4](x).flatten(0, 1), tokens.roll(-1, 1).flatten())

    body = Of(
        forward, nn.Embedding(23, 8), nn.Embedding(6, 8), Block(), Block(), nn.Linear(8, 23, bias=False)
    )
    return body, (torch.randint(0, 23, (4, 6)),), {}


@_model
def embedding() -> Built:
    model = Of(lambda m, tokens: m[0](tokens).square().mean(), nn.Embedding(22, 6, padding_idx=0))
    return model, (torch.randint(0, 22, (4, 5)),), {}


@_model
def embedding_bag() -> Built:
    model = Of(lambda m, bags: m[0](bags).square().mean(), nn.EmbeddingBag(22, 6, mode="mean"))
    return model, (torch.randint(0, 22, (8, 3)),), {}


@_model
def rotary() -> Built:
    def forward(layers: nn.ModuleList, x: Tensor) -> Tensor:
        h = layers[0](x)
        angles = torch.arange(h.shape[1], dtype=h.dtype).outer(
            0.1 ** torch.arange(h.shape[2] // 2, dtype=h.dtype)
        )
        a, b = h.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)

    return _of(forward, nn.Linear(6, 8), shape=(4, 5, 6))


# -- routing, randomness, order


@_model
def mixture_of_experts() -> Built:
    def forward(layers: nn.ModuleList, x: Tensor) -> Tensor:
        weights, chosen = layers[0](x).softmax(-1).topk(2, -1)
        outs = torch.stack([expert(x) for expert in layers[1:]], -2)
        picked = outs.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, outs.shape[-1]))
        return (picked * weights.unsqueeze(-1)).sum(-2)

    return _of(forward, nn.Linear(6, 4), *(nn.Linear(6, 8) for _ in range(4)), shape=(8, 6))


@_model
def dropout() -> Built:
    return _squared(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.4), nn.Linear(32, 8), nn.Dropout(0.1)), 8, 8)


@_model
def cumulative_sum() -> Built:
    return _of(lambda m, x: m[0](x).cumsum(1), nn.Linear(6, 8), shape=(4, 8, 6))


@_model
def sorting() -> Built:
    return _of(lambda m, x: m[0](x).sort(1, descending=True).values, nn.Linear(6, 8), shape=(4, 8, 6))


@_model
def gathering() -> Built:
    index = torch.randint(0, 8, (4, 5))
    model = Squared(Of(lambda m, x, index: m[0](x).gather(1, index), nn.Linear(6, 8)))
    return model, (torch.randn(4, 6), index), {}


@_model
def scattering() -> Built:
    def forward(layers: nn.ModuleList, x: Tensor, index: Tensor) -> Tensor:
        h = layers[0](x)
        return torch.zeros(5, h.shape[1]).index_add(0, index, h)

    return Squared(Of(forward, nn.Linear(6, 8))), (torch.randn(8, 6), torch.randint(0, 5, (8,))), {}


@_model
def masking() -> Built:
    def forward(layers: nn.ModuleList, x: Tensor) -> Tensor:
        h = layers[0](x)
        return (h @ h.mT).masked_fill(torch.ones(h.shape[1], h.shape[1]).triu(1).bool(), -1e4).softmax(-1) @ h

    return _of(forward, nn.Linear(6, 8), shape=(4, 6, 6))


@_model
def splitting() -> Built:
    def forward(layers: nn.ModuleList, x: Tensor) -> Tensor:
        a, b, c = layers[0](x).split([3, 4, 5], -1)
        return torch.cat([a, c.flip(1), b.roll(1, 0)], -1)

    return _of(forward, nn.Linear(6, 12), shape=(4, 5, 6))


@_model
def einsum() -> Built:
    return _of(
        lambda m, x: torch.einsum("bij,bkj,kd->bid", m[0](x), x, m[1].weight),
        nn.Linear(6, 6),
        nn.Linear(7, 5),
        shape=(4, 5, 6),
    )


@_model
def statistics() -> Built:
    def forward(layers: nn.ModuleList, x: Tensor) -> Tensor:
        h = layers[0](x)
        return torch.stack([h.mean(1), h.amax(1), h.std(1), h.logsumexp(1)], -1).flatten(1)

    return _of(forward, nn.Linear(6, 8), shape=(4, 7, 6))


@_model
def mixed_precision() -> Built:
    """Autocast: matrix products in bfloat16."""

    def forward(layers: nn.ModuleList, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layers[1](F.relu(layers[0](x))).float()

    return _of(forward, nn.Linear(8, 16), nn.Linear(16, 8), shape=(8, 8))


@_model
def several_losses() -> Built:
    def forward(layers: nn.ModuleList, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        h = F.elu(layers[0](x))
        return {"loss": F.cross_entropy(layers[1](h), labels) + 0.1 * F.l1_loss(layers[2](h), x), "hidden": h}

    model = Of(forward, nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(8, 6))
    return model, (torch.randn(8, 6), torch.randint(0, 5, (8,))), {}
