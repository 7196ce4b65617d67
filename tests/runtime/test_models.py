"""Hugging Face models on four real ranks: ten steps, and the same losses and parameters as in one process."""

import pytest
import torch

from shardwise.graph import capture
from shardwise.plan import plan_graph
from shardwise.runtime import verify


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    off = {f"{name}_pdrop": 0.0 for name in ("attn", "embd", "resid")}
    config = GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=32, vocab_size=97, use_cache=False, **off)
    return GPT2LMHeadModel(config)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_ten_steps(make, dtype, slow_devices):
    torch.manual_seed(0)
    model = make().to(dtype)
    tokens = torch.randint(0, 96, (4, 16))
    kwargs = {"input_ids": tokens, "labels": tokens}
    graph = capture(model, (), kwargs)
    plan = plan_graph(graph, mesh="dp=2,tp=2", cluster=slow_devices, compare=False)
    report = verify(model, (), kwargs, plan, steps=10, optimizer="adamw", backend="gloo")
    # Adam makes a step of full length even of a gradient that is rounding alone, as many are in bfloat16.
    tracked = {"loss", "output", "gradient"} | ({"parameter", "buffer"} if dtype == torch.float32 else set())
    assert all(check.ok for check in report.checks if check.kind in tracked), str(report)
    assert report.same_collectives
    assert report.steps == 10 and len([check for check in report.checks if check.kind == "loss"]) == 10
    assert report.collectives
    assert any(not layout.is_replicated for layout in plan.inputs.values())
