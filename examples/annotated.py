"""Three annotations for a model: the batch on `dp`, one weight of attention and one of the MLP on `tp`.

    python examples/annotated.py mistral

`ANNOTATED` has the models of `models.py` and ten architectures of Hugging Face, each with what is annotated and what
should come of it: with the shardings propagated to all other tensors, every linear layer of a transformer block has the
layout of Megatron-LM. Projections into a block are sharded by columns, those out of it by rows.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import models
import torch
from torch import nn

import shardwise as sw

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
COLUMNS, ROWS = "[{tp}, {}]", "[{}, {tp}]"  # of weights stored as (outputs, inputs)


@dataclass(frozen=True)
class Annotated:
    """A model with its annotations. `into` and `out` are patterns of the weights whose outputs, or inputs, should be
    sharded on `tp`; `outputs` is the dim of the weights that has their outputs."""

    build: Callable[[], Built]
    shardings: dict[str, str]
    into: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    outputs: int = 0

    def wrong(self, plan: sw.Plan) -> list[str]:
        """The weights of blocks that do not have the layout of Megatron-LM."""
        wrong = []
        for entry in plan.graph.with_role("parameter"):
            for patterns, dim in ((self.into, self.outputs), (self.out, 1 - self.outputs)):
                if any(fnmatchcase(entry.target, pattern) for pattern in patterns):
                    offset = len(entry.tensor.shape) - 2  # the dim of experts comes first
                    layout = plan.inputs[entry.name]
                    if layout.dims(len(entry.tensor.shape))[dim + offset] != ("tp",):
                        wrong.append(f"{entry.target}: {layout}")
        return wrong

    def linear_layers(self, plan: sw.Plan) -> int:
        targets = [entry.target for entry in plan.graph.with_role("parameter")]
        return sum(any(fnmatchcase(name, p) for p in (*self.into, *self.out)) for name in targets)


def _batch(name: str, rank: int = 2) -> dict[str, str]:
    return {name: "[" + ", ".join(["{dp}", *["{}"] * (rank - 1)]) + "]"}


def _blocks(
    build: Callable[[], Built],
    attention: str,
    mlp: str,
    into: tuple[str, ...],
    out: tuple[str, ...],
    outputs: int = 0,
    batch: dict[str, str] | None = None,
) -> Annotated:
    """A model of transformer blocks, annotated at a weight of attention and one of the MLP, both into the block."""
    columns = (COLUMNS, ROWS)[outputs]
    given = {**(batch or _batch("input_ids")), attention: columns, mlp: columns}
    return Annotated(build, given, (attention, mlp, *into), out, outputs)


def _tokens(model: nn.Module) -> Built:
    tokens = torch.randint(3, 97, (2, 16), generator=torch.Generator().manual_seed(0))
    return model, (), {"input_ids": tokens, "labels": tokens}


SIZES = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"vocab_size": 97, "max_position_embeddings": 64, "use_cache": False},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}


def hugging_face(kind: str, masked: bool = False, **sizes: Any) -> Built:
    """A small model of an architecture of Hugging Face."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    auto = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    return _tokens(auto.from_config(AutoConfig.for_model(kind, **{**SIZES, **sizes})))


_GROUPED = {"num_key_value_heads": 2}
_QKV = ("*.k_proj.weight", "*.v_proj.weight")
_BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_NEOX = {"attention": "*.query_key_value.weight", "mlp": "*.dense_h_to_4h.weight", "into": ()}
_NEOX_OUT = ("*.attention.dense.weight", "*.self_attention.dense.weight", "*.dense_4h_to_h.weight")


def _gated(kind: str, **sizes: Any) -> Annotated:
    """Separate projections of queries, keys and values, and a gated MLP, as in Llama."""
    return _blocks(
        partial(hugging_face, kind, **_GROUPED, **sizes),
        "*.q_proj.weight",
        "*.up_proj.weight",
        (*_QKV, "*.gate_proj.weight"),
        ("*.o_proj.weight", "*.down_proj.weight"),
    )


ANNOTATED: dict[str, Annotated] = {
    "mlp": Annotated(
        models.build_mlp, {"x": "[{dp}, {}]", "up.weight": COLUMNS}, ("up.weight",), ("down.weight",)
    ),
    "llama": _blocks(
        models.build_llama,
        "*.q_proj.weight",
        "*.up_proj.weight",
        (*_QKV, "*.gate_proj.weight"),
        ("*.o_proj.weight", "*.down_proj.weight"),
    ),
    "gpt2": _blocks(
        models.build_gpt2, "*.c_attn.weight", "*.c_fc.weight", (), ("*.c_proj.weight",), outputs=1
    ),
    "bert": _blocks(
        models.build_bert,
        "*.self.query.weight",
        "*.intermediate.dense.weight",
        ("*.self.key.weight", "*.self.value.weight"),
        ("bert.*.output.dense.weight",),
    ),
    "t5": _blocks(
        models.build_t5,
        "*.q.weight",
        "*.wi.weight",
        ("*.k.weight", "*.v.weight"),
        ("*.o.weight", "*.wo.weight"),
    ),
    "vit": _blocks(
        models.build_vit,
        "*.q_proj.weight",
        "*.fc1.weight",
        _QKV,
        ("*.o_proj.weight", "*.fc2.weight"),
        batch=_batch("pixel_values", 4),
    ),
    "mixtral": Annotated(
        models.build_mixtral,
        {**_batch("input_ids"), "*.q_proj.weight": COLUMNS, "*.gate_up_proj": "[{}, {tp}, {}]"},
        ("*.q_proj.weight", *_QKV, "*.gate_up_proj"),
        ("*.o_proj.weight", "*.experts.down_proj"),
    ),
    "cnn": Annotated(models.build_cnn, _batch("images", 4)),
    "unet": Annotated(models.build_unet, _batch("noisy", 4)),
    "lstm": Annotated(models.build_lstm, _batch("tokens")),
    "recommender": Annotated(models.build_recommender, _batch("input:dense")),
    "custom_op": Annotated(models.build_custom_op, _batch("x")),
    "mistral": _gated("mistral"),
    "qwen3": _gated("qwen3", head_dim=16),
    "gemma2": _gated("gemma2", head_dim=16),
    "olmo2": _gated("olmo2"),
    "phi3": _blocks(
        partial(hugging_face, "phi3", **_GROUPED),
        "*.qkv_proj.weight",
        "*.gate_up_proj.weight",
        (),
        ("*.o_proj.weight", "*.down_proj.weight"),
    ),
    "opt": _blocks(
        partial(hugging_face, "opt", ffn_dim=128, word_embed_proj_dim=64, dropout=0.0),
        "*.q_proj.weight",
        "*.fc1.weight",
        _QKV,
        ("*.out_proj.weight", "*.fc2.weight"),
    ),
    "gpt_neox": _blocks(partial(hugging_face, "gpt_neox"), out=_NEOX_OUT, **_NEOX),
    "bloom": _blocks(partial(hugging_face, "bloom", n_layer=2, n_head=4), out=_NEOX_OUT, **_NEOX),
    "roberta": _blocks(
        partial(hugging_face, "roberta", masked=True, **_BERT),
        "*.self.query.weight",
        "*.intermediate.dense.weight",
        ("*.self.key.weight", "*.self.value.weight"),
        ("roberta.*.output.dense.weight",),
    ),
    "starcoder2": _blocks(
        partial(hugging_face, "starcoder2", **_GROUPED, residual_dropout=0.0, embedding_dropout=0.0),
        "*.q_proj.weight",
        "*.c_fc.weight",
        _QKV,
        ("*.o_proj.weight", "*.c_proj.weight"),
    ),
}


if __name__ == "__main__":
    annotated = ANNOTATED[sys.argv[1] if len(sys.argv) > 1 else "llama"]
    model, args, kwargs = annotated.build()
    plan = sw.plan(model, args, kwargs, mesh="dp=2,tp=2", shardings=annotated.shardings)
    print(plan.summary(most=3))
    for entry in plan.graph.with_role("parameter"):
        print(f"{entry.target:<60} {plan.inputs[entry.name]}")
