"""Ten small models: each function returns a model, its arguments and its keyword arguments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardwise.modules import module_of

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def _examples() -> Any:
    """The module examples/models.py."""
    return module_of(Path(__file__).parents[2] / "examples" / "models.py")


def _tokens(*names: str) -> dict[str, Tensor]:
    return {name: torch.randint(0, 60, (4, 8)) for name in names}


def llama() -> Built:
    """Four query heads for each key head, so that both can be cut by two axes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=12,
        num_key_value_heads=6,
        vocab_size=60,
        use_cache=False,
    )
    return LlamaForCausalLM(config), (), _tokens("input_ids", "labels")


def qwen() -> Built:
    """Biased projections, two key heads for eight query heads."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=60,
        use_cache=False,
    )
    return Qwen2ForCausalLM(config), (), _tokens("input_ids", "labels")


def t5() -> Built:
    return _examples().build_t5()


class _EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(24, 6, 1, 1, 48, dropout=0.0, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.transformer(source, target, tgt_mask=mask, tgt_is_causal=True).square().mean()


def transformer() -> Built:
    return _EncoderDecoder(), (torch.randn(4, 6, 24), torch.randn(4, 8, 24)), {}


class _Grouped(nn.Module):
    """Attention over a context with grouped heads, a mask and causal queries."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(24, 48), nn.Linear(24, 24), nn.Linear(24, 24)
        self.out = nn.Linear(48, 24)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        for other in (x, context):
            q = self.query(x).unflatten(-1, (12, 4)).transpose(1, 2)
            k, v = (f(other).unflatten(-1, (6, 4)).transpose(1, 2) for f in (self.key, self.value))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=other is x, enable_gqa=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
        return x.square().mean()


def grouped() -> Built:
    return _Grouped(), (torch.randn(4, 6, 24), torch.randn(4, 8, 24)), {}


def cnn() -> Built:
    return _examples().build_cnn()


def unet() -> Built:
    return _examples().build_unet()


class _Separable(nn.Module):
    """Grouped and depthwise convolutions, group normalisation, shuffled pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 4, stride=4)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.grouped = nn.Conv2d(24, 48, 1, groups=12)
        self.norm = nn.GroupNorm(12, 48)
        self.up = nn.ConvTranspose2d(48, 16, 2, stride=2)
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.depthwise(x)
        x = F.gelu(self.norm(self.grouped(x)))
        return self.shuffle(self.up(x)).square().mean()


def separable() -> Built:
    return _Separable(), (torch.randn(4, 3, 16, 16),), {}


def lstm() -> Built:
    return _examples().build_lstm()


class _GRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(12, 18, bidirectional=True, batch_first=True)
        self.out = nn.Linear(36, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x)[0]).square().mean()


def gru() -> Built:
    return _GRU(), (torch.randn(6, 4, 12),), {}


MODELS: dict[str, Callable[[], Built]] = {
    build.__name__: build
    for build in (llama, qwen, grouped, t5, transformer, cnn, unet, separable, lstm, gru)
}
