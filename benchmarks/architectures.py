"""Tiny models of many architectures, with random weights, and arguments to train them with.

Configurations of transformers are made small by the names of their fields, which most of them share; those of other
libraries are listed with what makes them small.
"""

import inspect
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

Built = tuple[Any, tuple[Any, ...], dict[str, Any]]

# Fields of configurations, and values that make them small.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim", "emb_dim"), 32),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "projection_dim", "d_embed"), 32),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2
    ),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "num_blocks"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_groups"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim"), 8),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("d_ff", "d_inner", "feed_forward_proj_dim", "ffn_hidden_size"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_dim"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("vocab_size", "text_vocab_size", "vocab_size_per_layer_input"), 96),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"), 64
    ),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "mamba_dt_rank", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "mamba_d_head"), 8),
    **dict.fromkeys(("mamba_n_heads", "lru_width", "linear_num_value_heads", "linear_num_key_heads"), 4),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size", "time_step_rank", "chunk_size"), 8),
    **dict.fromkeys(("pad_token_id",), 0),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id"), 1),
    **dict.fromkeys(("eos_token_id",), 2),
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 3,
}


def small_config(kind: str, **others: Any) -> Any:
    """The configuration of a model type of transformers, made small."""
    from transformers import CONFIG_MAPPING

    made = CONFIG_MAPPING[kind]
    known, default = _fields(made), made()
    small = {
        name: value
        for name, value in SMALL.items()
        if name in known and not isinstance(getattr(default, name, None), list | tuple)
    }
    return made(**small | others)


def _fields(config: type) -> set[str]:
    found = set(getattr(config, "__dataclass_fields__", ()))
    for base in config.__mro__:
        if "__init__" in vars(base):
            found |= set(inspect.signature(base.__init__).parameters)
    return found


def tokens(batch: int = 4, length: int = 16, vocabulary: int = 90) -> torch.Tensor:
    return torch.randint(3, vocabulary, (batch, length))


def causal(kind: str, name: str, **others: Any) -> Built:
    ids = tokens()
    return _model(name, small_config(kind, **others)), (), {"input_ids": ids, "labels": ids}


def sequence_to_sequence(kind: str, name: str, **others: Any) -> Built:
    config = small_config(kind, **others)
    config.decoder_start_token_id = 1
    return _model(name, config), (), {"input_ids": tokens(), "labels": tokens()}


def image_classes(kind: str, name: str, **others: Any) -> Built:
    config = small_config(kind, **others)
    size = getattr(config, "image_size", 32)
    size = size if isinstance(size, int) else size[0]
    images = torch.randn(4, getattr(config, "num_channels", 3), size, size)
    return _model(name, config), (), {"pixel_values": images, "labels": torch.randint(2, (4,))}


def _model(name: str, config: Any) -> nn.Module:
    import transformers

    return getattr(transformers, name)(config)


# -- which models there are, by library


def _of_transformers() -> dict[str, Callable[[], Built]]:
    import transformers
    from transformers.models.auto import modeling_auto as auto

    transformers.logging.set_verbosity_error()
    tasks = (
        (CAUSAL, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, causal),
        (MASKED, auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, causal),
        (SEQUENCES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, sequence_to_sequence),
        (IMAGES, auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, image_classes),
    )
    found: dict[str, Callable[[], Built]] = {}
    for kinds, names, build in tasks:
        for kind in (kind for kind in kinds.split() if kind in names):
            name = names[kind] if isinstance(names[kind], str) else names[kind][0]
            others = SPECIAL.get(kind, {})
            found[f"transformers {name}"] = partial(build, kind, name, **others)
    return found


CAUSAL = """
    afmoe apertus arcee aria_text bart bert big_bird biogpt bitnet blenderbot bloom cohere cohere2 cohere2_moe
    cpmant ctrl cwm data2vec-text deepseek_v3 diffllama doge dots1 electra ernie ernie4_5 ernie4_5_moe exaone4
    falcon falcon_mamba flex_olmo gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neox
    gpt_neox_japanese gpt_oss gptj granite granitemoe granitemoeshared helium hunyuan_v1_dense jamba jetmoe lfm2
    llama mamba mamba2 marian mbart minimax ministral mistral mixtral modernbert-decoder mpt nanochat nemotron olmo
    olmo2 olmo3 olmoe openai-gpt opt pegasus persimmon phi phi3 phimoe plbart prophetnet qwen2 qwen2_moe qwen3
    qwen3_moe qwen3_next recurrent_gemma reformer rembert roberta roberta-prelayernorm roc_bert roformer rwkv
    seed_oss smollm3 solar_open stablelm starcoder2 trocr vaultgemma whisper xglm xlm xlm-roberta xlm-roberta-xl
    xlnet xlstm xmod youtu zamba
    bamba camembert exaone_moe falcon_h1 gemma4_text granitemoe_swa jais2 lfm2_moe megatron-bert minimax_m2
    ministral3
"""
MASKED = """
    albert bart bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm
    eurobert flaubert fnet funnel ibert layoutlm longformer luke megatron-bert mobilebert modernbert mpnet mra mvp
    nezha nomic_bert nystromformer perceiver rembert roberta roformer squeezebert xlm-roberta yoso
"""
SEQUENCES = """
    bart bigbird_pegasus blenderbot encoder-decoder fsmt led longt5 m2m_100 marian mbart mt5 mvp nllb-moe pegasus
    pegasus_x plbart prophetnet switch_transformers t5 umt5
"""
IMAGES = """
    beit bit convnext convnextv2 cvt data2vec-vision deit dinat dinov2 dinov2_with_registers efficientformer
    efficientnet focalnet hgnet_v2 hiera ijepa imagegpt levit mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2
    poolformer pvt pvt_v2 regnet resnet segformer siglip swiftformer swin swinv2 textnet van vit vit_msn
"""
TORCHVISION = """
    alexnet convnext_tiny densenet121 efficientnet_b0 googlenet mnasnet0_5 mobilenet_v2 mobilenet_v3_small
    regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_1 swin_t vgg11_bn vit_b_32 wide_resnet50_2
    maxvit_t
"""
TIMM = """
    resnet10t seresnet18 convnext_atto convnextv2_atto mobilenetv3_small_050 efficientnet_lite0 ghostnet_050 regnetx_002
    repvgg_a0 rexnet_100 tinynet_e dla34 hardcorenas_a lcnet_035 mobileone_s0 fbnetc_100 mnasnet_small resnest14d
    selecsls42 skresnet18 vovnet39a darknet17 cspresnet50 nfnet_l0 botnet26t_256 coatnet_nano_rw_224 poolformer_s12
    edgenext_xx_small inception_next_atto starnet_s1 fastvit_t8 repghostnet_050
    efficientvit_b0 mobilevitv2_050 regnety_002 tf_efficientnetv2_b0
"""
SPECIAL: dict[str, dict[str, Any]] = {
    "gptj": {"rotary_dim": 4},
    "textnet": {"image_size": [64, 64]},
    "reformer": {"is_decoder": True},
    "efficientnet": {"image_size": 64, "hidden_dim": 2560},
    "convnext": {"patch_size": 4},
    "convnextv2": {"patch_size": 4},
    "swin": {"embed_dim": 48, "patch_size": 4, "depths": [2, 2], "num_heads": [3, 6], "window_size": 4},
    "swinv2": {"embed_dim": 48, "patch_size": 4},
    "mobilevitv2": {"image_size": 64, "patch_size": 2},
    "levit": {"image_size": 64, "patch_size": 16},
    "mamba2": {"num_heads": 8},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "deepseek_v3": {"head_dim": 8, "qk_rope_head_dim": 8, "num_key_value_heads": 4},
    "youtu": {"head_dim": 8, "qk_rope_head_dim": 8, "num_key_value_heads": 4},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "siglip": {
        "vision_config": {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2}
        | {"num_attention_heads": 4, "intermediate_size": 64}
    },
}


def _of_torchvision() -> dict[str, Callable[[], Built]]:
    import torchvision

    sizes = {"alexnet": 64, "vit_b_32": 64, "maxvit_t": 224}

    def build(name: str) -> Built:
        own = {"image_size": 64} if name.startswith("vit") else {}
        own |= {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
        model = torchvision.models.get_model(name, weights=None, num_classes=4, **own)
        size = sizes.get(name, 32)
        return model, (torch.randn(2 if size > 64 else 4, 3, size, size),), {}

    return {f"torchvision {name}": partial(build, name) for name in TORCHVISION.split()}


def _of_timm() -> dict[str, Callable[[], Built]]:
    import timm

    transformer = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    small = {"img_size": 32}
    names: dict[str, dict[str, Any]] = {
        **dict.fromkeys(
            ("vit_tiny_patch16_224", "deit_tiny_patch16_224", "beit_base_patch16_224"), transformer
        ),
        **dict.fromkeys(("eva02_tiny_patch14_224", "cait_xxs24_224", "xcit_nano_12_p16_224"), transformer),
        **dict.fromkeys(("mixer_s32_224", "gmlp_s16_224", "resmlp_12_224"), small),
        **{name: {} for name in TIMM.split()},
    }
    names |= {name: {"img_size": 64} for name in ("botnet26t_256", "coatnet_nano_rw_224")}

    def build(name: str, own: dict[str, Any]) -> Built:
        model = timm.create_model(name, pretrained=False, num_classes=4, **own)
        side = own.get("img_size", 64)
        return model, (torch.randn(4, 3, side, side),), {}

    return {f"timm {name}": partial(build, name, own) for name, own in names.items()}


def _of_diffusers() -> dict[str, Callable[[], Built]]:
    import diffusers

    sample = {"sample": torch.randn(2, 4, 8, 8), "timestep": torch.tensor([3, 7])}
    words = {"encoder_hidden_states": torch.randn(2, 6, 32)}
    down, up = ("DownBlock2D", "CrossAttnDownBlock2D"), ("CrossAttnUpBlock2D", "UpBlock2D")
    blocks = {"block_out_channels": (16, 32), "norm_num_groups": 8, "layers_per_block": 1, "sample_size": 8}
    dit = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "norm_num_groups": 8}
    made: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "UNet2DModel": (
            {
                **blocks,
                "in_channels": 4,
                "out_channels": 4,
                "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            }
            | {"up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 8},
            sample,
        ),
        "UNet2DConditionModel": (
            {**blocks, "cross_attention_dim": 32, "attention_head_dim": 8, "down_block_types": down}
            | {"up_block_types": up},
            sample | words,
        ),
        "AutoencoderKL": (
            {"block_out_channels": (16, 32), "norm_num_groups": 8, "sample_size": 16}
            | {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
            {"sample": torch.randn(2, 3, 16, 16)},
        ),
        "DiTTransformer2DModel": (
            {**dit, "in_channels": 4, "sample_size": 8, "patch_size": 2, "num_embeds_ada_norm": 10},
            {"hidden_states": sample["sample"], "timestep": sample["timestep"]}
            | {"class_labels": torch.tensor([1, 2])},
        ),
    }

    tokens = {"hidden_states": torch.randn(2, 16, 4), "encoder_hidden_states": torch.randn(2, 6, 32)}
    pooled = {"pooled_projections": torch.randn(2, 32), "timestep": sample["timestep"].float()}
    joint = {"attention_head_dim": 16, "num_attention_heads": 2, "num_layers": 1, "joint_attention_dim": 32}
    made |= {
        "FluxTransformer2DModel": (
            {**joint, "patch_size": 1, "in_channels": 4, "num_single_layers": 1, "pooled_projection_dim": 32}
            | {"axes_dims_rope": (4, 4, 8)},
            {**tokens, **pooled, "img_ids": torch.randn(16, 3), "txt_ids": torch.randn(6, 3)},
        ),
        "SD3Transformer2DModel": (
            {**joint, "sample_size": 8, "patch_size": 2, "in_channels": 4, "out_channels": 4}
            | {"caption_projection_dim": 32, "pooled_projection_dim": 32, "pos_embed_max_size": 8},
            {**tokens, **pooled, "hidden_states": sample["sample"]},
        ),
        "VQModel": (
            {"block_out_channels": (16, 32), "norm_num_groups": 8, "sample_size": 16, "num_vq_embeddings": 12}
            | {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
            {"sample": torch.randn(2, 3, 16, 16)},
        ),
    }

    def build(name: str, config: dict[str, Any], inputs: dict[str, Any]) -> Built:
        return getattr(diffusers, name)(**config), (), dict(inputs)

    return {f"diffusers {name}": partial(build, name, *given) for name, given in made.items()}


class _Program(nn.Module):
    """A function of a layer and an input."""

    def __init__(self, function: Callable[..., torch.Tensor], layer: nn.Module) -> None:
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer, x)


class _Average(nn.Module):
    """Subtracts a moving average, which it assigns."""

    average: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return x - self.average


def _steps(cell: Any, x: torch.Tensor) -> torch.Tensor:
    state = (x.new_zeros(x.shape[1:]),) * 2
    for each in x:
        state = cell(each, state)
    return state[0]


def _vmapped(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(lambda row: (layer.weight @ row).cumsum(0))(x)


def _jvp(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.func.jvp(lambda y: layer(y).tanh(), (x,), (torch.ones_like(x),))[1]


def _penalised(layer: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    made = layer(x).tanh().sum()
    return made + torch.autograd.grad(made, x, create_graph=True)[0].square().sum()


def _softmax_in_place(layer: Any, x: torch.Tensor) -> torch.Tensor:
    made = layer(x)
    made -= made.detach().amax(-1, keepdim=True)
    made.exp_()
    return (made / made.sum(-1, keepdim=True)).square().sum()


def _spectrum(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.fft.rfft(layer(x)).abs().square().mean()


def _selected_rows(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x[x[:, 0] > 0]).square().mean()


def _decoded(layers: Any, ids: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        ids = torch.cat([ids, layers(ids)[:, -1:].argmax(-1)], 1)
    return layers(ids).logsumexp(-1).mean()


def _ctc(layer: Any, x: torch.Tensor) -> torch.Tensor:
    lengths = torch.full((4,), 10), torch.full((4,), 3)
    return nn.functional.ctc_loss(layer(x).log_softmax(-1), torch.ones(4, 3, dtype=torch.int64), *lengths)


def _packed(layer: Any, x: torch.Tensor) -> torch.Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 3, 2]))
    return nn.utils.rnn.pad_packed_sequence(layer(packed)[0])[0].sum()


def _of_torch() -> dict[str, Callable[[], Built]]:
    def layers(build: Callable[[], nn.Module], *shape: int) -> Callable[[], Built]:
        return lambda: (build(), (torch.randn(shape),), {})

    def pair(build: Callable[[], nn.Module], *shape: int) -> Callable[[], Built]:
        return lambda: (build(), (torch.randn(shape), torch.randn(shape)), {})

    def encoder() -> nn.Module:
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)

    return {
        "torch linear, relu": layers(
            lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), 8, 8
        ),
        "torch LSTM": layers(lambda: nn.LSTM(8, 16, 2, batch_first=True, dropout=0.1), 4, 6, 8),
        "torch GRU, bidirectional": layers(lambda: nn.GRU(8, 16, bidirectional=True), 6, 4, 8),
        "torch RNN": layers(lambda: nn.RNN(8, 16), 6, 4, 8),
        "torch TransformerEncoder": layers(encoder, 4, 6, 32),
        "torch Transformer": pair(lambda: nn.Transformer(32, 4, 1, 1, 64, batch_first=True), 4, 6, 32),
        "torch MultiheadAttention": lambda: (
            nn.MultiheadAttention(32, 4, batch_first=True),
            (torch.randn(4, 6, 32),) * 3,
            {},
        ),
        "torch Conv3d, InstanceNorm3d": layers(
            lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.InstanceNorm3d(4), nn.PReLU()),
            2,
            2,
            6,
            6,
            6,
        ),
        "torch ConvTranspose2d": layers(
            lambda: nn.Sequential(nn.ConvTranspose2d(3, 6, 3, 2), nn.BatchNorm2d(6), nn.Tanh()), 4, 3, 5, 5
        ),
        "torch pooling": layers(
            lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(3), nn.Flatten()),
            4,
            3,
            16,
        ),
        "torch Bilinear": pair(lambda: nn.Bilinear(8, 8, 6), 4, 8),
        "torch weight norm": layers(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 6)), 4, 8),
        "torch spectral norm": layers(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6)), 4, 8),
        "torch orthogonal": layers(lambda: nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)), 4, 8),
        "torch EmbeddingBag": lambda: (nn.EmbeddingBag(20, 8), (torch.randint(20, (4, 6)),), {}),
        "torch EmbeddingBag, offsets": lambda: (
            nn.EmbeddingBag(20, 8, mode="mean"),
            (torch.randint(20, (12,)), torch.tensor([0, 3, 7])),
            {},
        ),
        "torch LSTM, projections": layers(lambda: nn.LSTM(8, 16, proj_size=4, bidirectional=True), 6, 4, 8),
        "torch LSTMCell": layers(lambda: _Program(_steps, nn.LSTMCell(8, 8)), 3, 4, 8),
        "torch TransformerEncoder, padding": lambda: (
            encoder(),
            (torch.randn(4, 6, 32),),
            {"src_key_padding_mask": torch.arange(6).repeat(4, 1) > 3},
        ),
        "torch vmap": layers(lambda: _Program(_vmapped, nn.Linear(8, 8)), 4, 8),
        "torch jvp": layers(lambda: _Program(_jvp, nn.Linear(8, 8)), 4, 8),
        "torch gradient penalty": layers(lambda: _Program(_penalised, nn.Linear(8, 8)), 4, 8),
        "torch in-place softmax": layers(lambda: _Program(_softmax_in_place, nn.Linear(8, 8)), 4, 8),
        "torch FFT": layers(lambda: _Program(_spectrum, nn.Linear(8, 8)), 4, 8),
        "torch moving average in a buffer": layers(
            lambda: nn.Sequential(nn.Linear(8, 8), _Average(8), nn.Linear(8, 4)), 4, 8
        ),
        "torch selected rows": layers(lambda: _Program(_selected_rows, nn.Linear(8, 8)), 4, 8),
        "torch greedy decoding": lambda: (
            _Program(_decoded, nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))),
            (torch.randint(12, (4, 3)),),
            {},
        ),
        "torch CTC loss": layers(lambda: _Program(_ctc, nn.Linear(8, 6)), 10, 4, 8),
        "torch packed sequence": layers(lambda: _Program(_packed, nn.LSTM(8, 8)), 5, 4, 8),
        "torch PixelShuffle, Upsample": layers(
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2), nn.Upsample(scale_factor=2)),
            2,
            3,
            6,
            6,
        ),
    }


def _of_peft() -> dict[str, Callable[[], Built]]:
    """Llama with what is trained in its place."""
    import peft

    task, attention = {"task_type": "CAUSAL_LM"}, ["q_proj", "v_proj"]
    low_rank = {**task, "r": 4, "target_modules": attention}
    given: dict[str, tuple[str, dict[str, Any]]] = {
        "LoRA": ("LoraConfig", {**low_rank, "lora_dropout": 0.1}),
        "LoRA of all layers, whole head": (
            "LoraConfig",
            {**low_rank, "target_modules": "all-linear", "modules_to_save": ["lm_head"]},
        ),
        "DoRA": ("LoraConfig", {**low_rank, "use_dora": True}),
        "VeRA": ("VeraConfig", low_rank),
        "IA3": (
            "IA3Config",
            {**task, "target_modules": [*attention, "down_proj"], "feedforward_modules": ["down_proj"]},
        ),
        "prefix tuning": ("PrefixTuningConfig", {**task, "num_virtual_tokens": 4}),
    }

    def build(config: str, fields: dict[str, Any]) -> Built:
        model, args, kwargs = causal("llama", "LlamaForCausalLM")
        return peft.get_peft_model(model, getattr(peft, config)(**fields)), args, kwargs

    return {f"peft {name}": partial(build, *each) for name, each in given.items()}


_LIBRARIES: dict[str, Callable[[], dict[str, Callable[[], Built]]]] = {
    "torch": _of_torch,
    "torchvision": _of_torchvision,
    "timm": _of_timm,
    "diffusers": _of_diffusers,
    "transformers": _of_transformers,
    "peft": _of_peft,
}


def architectures() -> tuple[dict[str, Callable[[], Built]], dict[str, str]]:
    """Every model, by its library and name; and the libraries that are left out, with the reason."""
    found: dict[str, Callable[[], Built]] = {}
    left_out: dict[str, str] = {}
    for library, listed in _LIBRARIES.items():
        try:
            found |= listed()
        except (ImportError, RuntimeError) as error:
            left_out[library] = f"it cannot be imported ({str(error).splitlines()[0]})"
    return found, left_out


_DECLARED: list[torch.library.Library] = []  # which hold their operators while they live


def _declare_operators_of_torchvision() -> None:
    """Without its compiled library torchvision fails to import for want of two operators that no model here uses."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or any(Path(spec.origin).parent.glob("_C*.so")):
        return
    declared = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DECLARED.append(declared)


_declare_operators_of_torchvision()  # before anything imports it: torch and transformers do where it is found
