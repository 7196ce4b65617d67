"""A small zoo: every `build_*()` returns `(model, args, kwargs)`, small enough to run on a laptop.

    shardwise capture examples/models.py:build_llama

`llama_8b()` and `llama_70b()` have the real dimensions, with weights that need no memory. Dropout is off, so that two
runs can be compared.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def build_mlp() -> Built:
    """Two linear layers and a squared error."""
    return MLP(10, 32, 6), (torch.randn(8, 10), torch.randn(8, 6)), {}


def build_llama() -> Built:
    """Hugging Face Llama with grouped key and value heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=97,
        use_cache=False,
    )
    return LlamaForCausalLM(config), (), _tokens(97, "input_ids", "labels")


def build_gpt2() -> Built:
    """Hugging Face GPT-2: the embedding is also the last layer's weight."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=64, n_layer=2, n_head=4, n_positions=32, vocab_size=97, use_cache=False, **_no_dropout("pdrop")
    )
    return GPT2LMHeadModel(config), (), _tokens(97, "input_ids", "labels")


def build_bert() -> Built:
    """Hugging Face BERT, with a padding mask."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=97,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    kwargs = _tokens(97, "input_ids", "labels")
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, 11:] = 0
    return BertForMaskedLM(config), (), {**kwargs, "attention_mask": mask}


def build_t5() -> Built:
    """Hugging Face T5: encoder and decoder, learned bias of relative positions."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=1,
        num_heads=4,
        vocab_size=97,
        dropout_rate=0.0,
        use_cache=False,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    return T5ForConditionalGeneration(config), (), _tokens(97, "input_ids", "labels")


def build_vit() -> Built:
    """Hugging Face Vision Transformer."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
        num_labels=7,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    kwargs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 5])}
    return ViTForImageClassification(config), (), kwargs


def build_mixtral() -> Built:
    """Hugging Face Mixtral: a router and four experts per layer."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        vocab_size=97,
        use_cache=False,
        experts_implementation="batched_mm",
    )
    return MixtralForCausalLM(config), (), _tokens(97, "input_ids", "labels")


def build_cnn() -> Built:
    """Convolutions with batch normalisation and pooling."""
    return CNN(), (torch.randn(4, 3, 16, 16), torch.tensor([1, 4, 0, 2])), {}


def build_unet() -> Built:
    """A U-Net block: group normalisation, down, bilinear up, concatenation."""
    return UNet(), (torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)), {}


def build_lstm() -> Built:
    """Two layers of LSTM over an embedding."""
    tokens = torch.randint(0, 50, (3, 4))
    return LSTM(), (tokens, tokens.roll(-1, 1)), {}


def build_recommender() -> Built:
    """Bags of categorical features, dense features and their interaction."""
    bags = [torch.randint(0, 40, (6, 3)), torch.randint(0, 25, (6, 2))]
    return Recommender(), (torch.randn(6, 5), bags, torch.rand(6)), {}


def build_custom_op() -> Built:
    """A model with a custom operator, registered with `torch.library`."""
    return Squashed(), (torch.randn(8, 12), torch.randn(8, 12)), {}


def llama_8b(layers: int = 32, batch: int = 2, positions: int = 8192) -> Built:
    """Llama 3 8B in bfloat16."""
    return _llama(layers, batch, positions, hidden=4096, inner=14336, heads=32)


def llama_70b(layers: int = 80, batch: int = 2, positions: int = 8192) -> Built:
    """Llama 3 70B in bfloat16."""
    return _llama(layers, batch, positions, hidden=8192, inner=28672, heads=64)


def llama_405b(layers: int = 126, batch: int = 4, positions: int = 8192) -> Built:
    """Llama 3 405B in bfloat16."""
    return _llama(layers, batch, positions, hidden=16384, inner=53248, heads=128)


def _llama(layers: int, batch: int, positions: int, *, hidden: int, inner: int, heads: int) -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        use_cache=False,
        dtype=torch.bfloat16,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
            tokens = torch.empty(batch, positions, dtype=torch.int64)
    finally:
        torch.set_default_dtype(before)
    return model, (), {"input_ids": tokens, "labels": tokens}


def _tokens(vocabulary: int, *names: str) -> dict[str, Tensor]:
    return {name: torch.randint(1, vocabulary, (2, 16)) for name in names}


def _no_dropout(suffix: str) -> dict[str, float]:
    return {f"{name}_{suffix}": 0.0 for name in ("attn", "embd", "resid")}


class MLP(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.up = nn.Linear(inputs, hidden)
        self.down = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(self.down(F.gelu(self.up(x))), target)


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, groups=2),
            nn.BatchNorm2d(16, affine=False),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(16, 5)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.features(images).flatten(1))
        return {"loss": F.cross_entropy(logits, labels, label_smoothing=0.1), "logits": logits}


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(4, 8)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.middle = nn.GroupNorm(4, 16)
        self.leave = nn.Conv2d(24, 3, 1)

    def forward(self, noisy: Tensor, noise: Tensor) -> Tensor:
        wide = F.silu(self.norm(self.enter(noisy)))
        deep = F.silu(self.middle(self.down(wide)))
        up = F.interpolate(deep, scale_factor=2, mode="bilinear", align_corners=False)
        return F.mse_loss(self.leave(torch.cat([wide, up], 1)), noise)


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = self.lstm(self.embed(tokens))
        logits = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), following.flatten()), logits


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(40, 8, mode="sum"), nn.EmbeddingBag(25, 8, mode="mean")])
        self.dense = nn.Linear(5, 8)
        self.top = nn.Linear(8 + 3, 1)

    def forward(self, dense: Tensor, categories: list[Tensor], clicked: Tensor) -> Tensor:
        bottom = self.dense(dense).relu()
        features = torch.stack([bottom, *(bag(c) for bag, c in zip(self.bags, categories, strict=True))], 1)
        pairs = torch.tril_indices(3, 3, -1)
        crossed = (features @ features.mT)[:, pairs[0], pairs[1]]
        logits = self.top(torch.cat([bottom, crossed], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, clicked)


@torch.library.custom_op("zoo::squash", mutates_args=())
def squash(x: Tensor, limit: float) -> Tensor:
    """x squashed into -limit .. limit, with dim 1 divided by its largest norm."""
    return limit * x / (1 + x.norm(dim=1, keepdim=True))


@squash.register_fake
def _(x: Tensor, limit: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("zoo::squash_backward", mutates_args=())
def squash_backward(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    length = x.norm(dim=1, keepdim=True)
    along = (grad * x).sum(1, keepdim=True) * x / (length * (1 + length))
    return limit * (grad - along) / (1 + length)


@squash_backward.register_fake
def _(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    x, ctx.limit = inputs
    ctx.save_for_backward(x)


def _back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return squash_backward(grad, *ctx.saved_tensors, ctx.limit), None


squash.register_autograd(_back, setup_context=_keep)


class Squashed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(12, 16)
        self.out = nn.Linear(16, 12)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(self.out(squash(self.into(x), 2.0)), target)


ZOO = {
    name.removeprefix("build_"): build for name, build in list(globals().items()) if name.startswith("build_")
}
