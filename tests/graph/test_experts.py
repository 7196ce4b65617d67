"""Mixtures of experts: the operator against a loop over tokens, and models of transformers captured with it."""

import pytest
import torch
from torch import Tensor, nn

from shardwise import capture
from shardwise.calls import Call, facts
from shardwise.graph import experts, run
from shardwise.graph._experts import GATES

TOKENS, SLOTS, WIDTH, FEATURES, EXPERTS = 6, 2, 5, 3, 4


def r(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def mixture(parts: int, biases: bool) -> list[Tensor | None]:
    """The tensors of a call; the first token has an expert that is elsewhere."""
    order = torch.rand(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(0)).argsort(1)
    index = order[:, :SLOTS].clone()
    index[0, 0] = EXPERTS + 1
    found: list[Tensor | None] = [r(TOKENS, WIDTH), index, r(TOKENS, SLOTS)]
    found += [r(EXPERTS, WIDTH, parts, FEATURES), r(EXPERTS, parts, FEATURES) if biases else None]
    return [*found, r(EXPERTS, FEATURES, WIDTH), r(EXPERTS, WIDTH) if biases else None]


def token_by_token(gate, x, index, weight, up, up_bias, down, down_bias) -> Tensor:
    rows = []
    for token in range(TOKENS):
        row = torch.zeros(WIDTH, dtype=x.dtype)
        for slot, expert in enumerate(index[token].tolist()):
            if expert < EXPERTS:
                hidden = torch.einsum("d,dpf->pf", x[token], up[expert])
                hidden = hidden if up_bias is None else hidden + up_bias[expert]
                made = GATES[gate].run(hidden.unsqueeze(0))[0] @ down[expert]
                row = row + weight[token, slot] * (made if down_bias is None else made + down_bias[expert])
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("biases", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("gate", GATES)
def test_the_operator_and_its_backward_are_those_of_a_loop_over_tokens(gate, biases):
    tensors = mixture(GATES[gate].parts, biases)
    leaves = [t.requires_grad_() for t in tensors if t is not None and t.is_floating_point()]
    made, expected = experts(*tensors, gate, EXPERTS), token_by_token(gate, *tensors)
    torch.testing.assert_close(made, expected)
    grad = r(TOKENS, WIDTH)
    for found, wanted in zip(
        torch.autograd.grad(made, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True
    ):
        torch.testing.assert_close(found, wanted)


def test_a_gate_is_bounded():
    hidden = torch.tensor([[[9.0], [9.0]], [[-9.0], [-9.0]]])
    expected = torch.tensor([[56.0], [54.0]]) * torch.sigmoid(1.702 * torch.tensor([[7.0], [-9.0]]))
    torch.testing.assert_close(GATES["bounded_swiglu"].run(hidden), expected)


def test_experts_cost_what_their_share_of_the_tokens_does():
    x, index, weight, up, _, down, _ = mixture(2, False)
    op = torch.ops.shardwise.experts.default
    whole = Call.of(op, x, index, weight, up, None, down, None, "silu_gated", EXPERTS)
    half = Call.of(op, x, index, weight, up[:2], None, down[:2], None, "silu_gated", EXPERTS)
    flops = [facts(op).flops(**call.arguments) for call in (whole, half)]
    assert flops == [2 * TOKENS * SLOTS * 3 * WIDTH * FEATURES, TOKENS * SLOTS * 3 * WIDTH * FEATURES]


SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
}


def gpt_oss() -> nn.Module:
    from transformers import GptOssConfig, GptOssForCausalLM

    return GptOssForCausalLM(GptOssConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, head_dim=8))


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4))


@pytest.mark.parametrize("build", [mixtral, gpt_oss])
def test_experts_of_transformers_are_captured_as_one_operator(build):
    torch.manual_seed(0)
    model, ids = build(), torch.randint(32, (2, 4))
    before = model.config._experts_implementation
    graph = capture(model, (), {"input_ids": ids, "labels": ids})
    assert graph.ops["shardwise.experts.default"] == graph.ops["shardwise.experts_backward.default"] == 1
    assert any("shardwise::experts" in note for note in graph.notes)
    assert model.config._experts_implementation == before
    loss = model(input_ids=ids, labels=ids).loss
    torch.testing.assert_close(run(graph, model, (), {"input_ids": ids, "labels": ids}).outputs["loss"], loss)


def test_experts_with_a_gate_of_their_own_are_captured_as_batched_products():
    torch.manual_seed(0)
    model, ids = mixtral(), torch.randint(32, (2, 4))
    for module in model.modules():
        if hasattr(module, "act_fn"):
            module.act_fn = nn.Softsign()
    graph = capture(model, (), {"input_ids": ids, "labels": ids})
    assert "shardwise.experts.default" not in graph.ops and graph.ops["aten.bmm.default"]
    loss = model(input_ids=ids, labels=ids).loss
    torch.testing.assert_close(run(graph, model, (), {"input_ids": ids, "labels": ids}).outputs["loss"], loss)
