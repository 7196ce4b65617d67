"""Two transformer blocks in plain torch, for measuring: a Llama-style and a GPT-style one.

This file imports only torch, so that it runs on a machine without this package.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """One block and its input. `groups` is the number of key and value heads.

    With `ranks` it is the part of one rank under tensor parallelism, which has as much less of heads and inner dim.
    """

    style: str
    batch: int
    positions: int
    width: int
    heads: int
    groups: int
    inner: int
    ranks: int = 1

    @property
    def name(self) -> str:
        heads = f"{self.heads}" if self.groups == self.heads else f"{self.heads}x{self.groups}"
        whole = f"{self.style}-b{self.batch}-s{self.positions}-w{self.width}-h{heads}-i{self.inner}"
        return whole if self.ranks == 1 else f"{whole}-tp{self.ranks}"

    @property
    def head(self) -> int:
        return self.width // self.heads

    def build(self) -> nn.Module:
        return GPT(self) if self.style == "gpt" else Llama(self)

    def input(self, device: str = "cpu") -> Tensor:
        return torch.randn(self.batch, self.positions, self.width, device=device).requires_grad_()


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Llama(nn.Module):
    """RMSNorm (torch's own in style `llama3`), rotary embeddings, grouped causal attention, SwiGLU."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        norm = nn.RMSNorm if shape.style == "llama3" else RMSNorm
        heads, groups = (count // shape.ranks * shape.head for count in (shape.heads, shape.groups))
        inner = shape.inner // shape.ranks
        self.norm = norm(shape.width)
        self.query = nn.Linear(shape.width, heads, bias=False)
        self.key = nn.Linear(shape.width, groups, bias=False)
        self.value = nn.Linear(shape.width, groups, bias=False)
        self.output = nn.Linear(heads, shape.width, bias=False)
        self.norm_mlp = norm(shape.width)
        self.gate = nn.Linear(shape.width, inner, bias=False)
        self.up = nn.Linear(shape.width, inner, bias=False)
        self.down = nn.Linear(inner, shape.width, bias=False)
        frequencies = 10000.0 ** (-torch.arange(0, shape.head, 2) / shape.head)
        angles = torch.outer(torch.arange(shape.positions), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm(x))
        h = self.norm_mlp(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = (
            _by_heads(linear(x), self.shape.head) for linear in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(
            self.turned(query), self.turned(key), value, is_causal=True, enable_gqa=True
        )
        return self.output(mixed.transpose(1, 2).flatten(2))

    def turned(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin


class Model(nn.Module):
    """A language model of such blocks, with its loss."""

    def __init__(self, shape: Shape, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, shape.width)
        self.layers = nn.ModuleList(Llama(shape) for _ in range(layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class GPT(nn.Module):
    """LayerNorm, causal attention from one projection, GELU, biases everywhere."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.norm = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.output = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, shape.inner)
        self.down = nn.Linear(shape.inner, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (_by_heads(part, self.shape.head) for part in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))


def _by_heads(x: Tensor, size: int) -> Tensor:
    return x.unflatten(-1, (-1, size)).transpose(1, 2)
