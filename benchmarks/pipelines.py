"""Pipelines on real ranks: models in stages by torch's schedules, trained on four processes, compared with the model.

    python benchmarks/pipelines.py [--models llama,t5] [--cases 0,1] [--json FILE]

Each model is planned in stages on four ranks and trained for three steps of four micro-batches, connected by gloo.
Losses, gradients and parameters are compared with those of the unsharded model, collectives with those priced, and what
each rank computed, in order, with what was simulated. The U-Net has skips across every cut; T5 a weight that three of
its parts share.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import Record, takes_json

import shardwise as sw
from shardwise.modules import module_of

MODELS = Path(__file__).parents[1] / "examples" / "models.py"
CASES = (
    ("pp=4", "1F1B"),
    ("pp=2,tp=2", "ZBVZeroBubble"),
    ("pp=2,dp=2", "Interleaved1F1B"),
    ("pp=2,tp=2", "1F1B"),
    ("pp=2,dp=2", "ZBVZeroBubble"),
    ("pp=4", "Interleaved1F1B"),
)
COLUMNS = {
    "model": "",
    "mesh": "",
    "schedule": "",
    "stages": "{:d}",
    "parts": "{:d}",
    "idle": "{:.0%}",
    "tensors": "{:d}",
    "largest error": "{:.1e}",
    "gloo": "",
    "CPU": "{:.0f} s",
}


def tokens() -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 64, (4, 8))
    return {"input_ids": ids, "labels": ids}


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=6, vocab_size=64, use_cache=False)
    return LlamaForCausalLM(config), (), tokens()


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 6, "n_head": 2, "vocab_size": 64, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False)), (), tokens()


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
    return (
        T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, use_cache=False)),
        (),
        tokens(),
    )


def unet() -> Any:
    return module_of(MODELS).build_unet()


ZOO: dict[str, Callable[[], Any]] = {"unet": unet, "llama": llama, "gpt2": gpt2, "t5": t5}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(ZOO))
    parser.add_argument("--cases", default=",".join(map(str, range(len(CASES)))), help="numbers of cases")
    takes_json(parser)
    options = parser.parse_args()
    record = Record(__doc__, options.json)
    table = record.sheet("Three steps of four micro-batches", COLUMNS)
    wrong = 0
    for number in map(int, options.cases.split(",")):
        mesh, schedule = CASES[number]
        for name in options.models.split(","):
            torch.manual_seed(0)
            begun = time.process_time()
            model, args, *more = ZOO[name]()
            kwargs = more[0] if more else {}
            plan = {
                "mesh": mesh,
                "schedule": schedule,
                "micro_batches": 4,
                "cluster": "laptop",
                "confirm": False,
            }
            try:
                pipeline = sw.plan(model, args, kwargs, **plan)
            except sw.UsageError as error:
                if "parts between which it can be cut" not in str(error):
                    raise
                table.add(name, mesh, schedule, None, None, None, None, None, "too few parts", None)
                continue
            assert isinstance(pipeline, sw.Pipeline)
            given: Any = {"steps": 3, "optimizer": "adamw", "backend": "gloo", "only_plan": True}
            report = sw.verify(model, args, kwargs, plan=pipeline, **given)
            table.add(
                *(name, mesh, schedule, len(pipeline.stages), pipeline.cuts[-1], pipeline.time.bubble),
                *(len(report.checks), max(check.error for check in report.checks)),
                *("equal" if report.ok else "differs", time.process_time() - begun),
            )
            if not report.ok:
                wrong += 1
                print(report)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
