"""Mixtures of experts: models like DeepSeek-V3 planned at real dimensions, and what the experts' rows bring.

    python benchmarks/experts.py [--models 16B,671B] [--time-limit 100] [--json FILE]

The models are those of transformers on the meta device, in bfloat16, with Adam; that of 671 billion parameters, which
does not fit otherwise, computes every block again in backward. Where all experts are chosen equally
often, `exchanged` are the bytes that one device sends in all-to-alls inside of experts in a step.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from record import Record, takes_json

SIZES = {
    "16B": (
        "ep=8",
        8,
        "none",
        {
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "n_routed_experts": 64,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "vocab_size": 102400,
        },
    ),
    "671B": ("dp=64,ep=8", 512, "full", {}),  # transformers' own defaults
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--time-limit", type=float, default=100.0)
    parser.add_argument("--memory", default="80GB")
    takes_json(parser)
    options = parser.parse_args()
    record = Record(__doc__, options.json)
    columns = {
        "model": "",
        "mesh": "",
        "recompute": "",
        "parameters": "{:.1f} B",
        "calls": "{:,d}",
        "step": "{:.3f} s",
    }
    columns |= {
        "gap": "{:.1%}",
        "peak": "{:.1f} GB",
        "exchanged": "{:.2f} GB",
        "by exchange": "",
        "CPU": "{:.0f} s",
    }
    table = record.sheet("4,096 tokens a device, H100", columns)
    for name in options.models.split(","):
        for line in planned(name, options):
            table.add(*line)


def planned(name: str, options: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    import shardwise as sw
    from shardwise.forms import is_communicating
    from shardwise.planning import form_price, plan_graph

    mesh, batch, recompute, sizes = SIZES[name]
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, use_cache=False))
        ids = torch.empty(batch, 4096, dtype=torch.int64)
    count = sum(parameter.numel() for parameter in model.parameters()) / 1e9
    begun = time.process_time()
    graph = sw.capture(model, (), {"input_ids": ids, "labels": ids}, recompute=recompute)
    limits = {"memory": options.memory, "time_limit": options.time_limit}
    plan = plan_graph(graph, mesh=mesh, cluster="h100", **limits, compare=False)
    spent = time.process_time() - begun
    calls = [node for node in graph.nodes if node.op.startswith("shardwise.experts")]
    choices = [plan.choices[node.name] for node in calls]
    talking = [is_communicating(choice.local) for choice in choices]
    sent = sum(
        form_price(graph.call(node), choice, plan.cluster).sent
        for node, choice, talks in zip(calls, choices, talking, strict=True)
        if talks
    )
    yield (
        *(
            name,
            mesh,
            recompute,
            count,
            len(graph.nodes),
            plan.cost.seconds,
            1 - plan.bound / plan.cost.seconds,
            plan.cost.peak / 1e9,
            sent / 1e9,
        ),
        *(f"{sum(talking)} of {len(calls)}", spent),
    )
    for text, times in Counter(" x ".join(row.text for row in choice.rows) for choice in choices).items():
        print(f"  {times} calls by {text}")


if __name__ == "__main__":
    main()
