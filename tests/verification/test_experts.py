"""Plans of mixtures of experts, on simulated and on real ranks."""

import pytest
import torch
from torch import Tensor, nn

import shardwise as sw
from shardwise.graph import experts
from shardwise.planning import Offers, Plan, random_plan
from tests.graph.test_experts import SIZES, gpt_oss, mixtral


class Mixture(nn.Module):
    """A router, and experts of which each token goes to two."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 5)
        self.up, self.down = nn.Parameter(torch.randn(5, 6, 2, 3)), nn.Parameter(torch.randn(5, 3, 6))

    def forward(self, x: Tensor) -> Tensor:
        weight, index = self.router(x).softmax(-1).topk(2)
        made = experts(x, index, weight, self.up, None, self.down, None, "silu_gated", 5)
        return (made - x).square().mean()


@pytest.fixture(scope="module")
def captured():
    torch.manual_seed(0)
    model, x = Mixture(), torch.randn(9, 6)
    return model, x, sw.capture(model, (x,))


def forms(plan: Plan) -> list[str | None]:
    return [
        row.local for node in plan.graph.nodes if "experts" in node.op for row in plan.choices[node.name].rows
    ]


def planned(graph, mesh: str, form: str, share: float = 0.0) -> Plan:
    """A random plan with this form, forward and backward."""
    offers = Offers(graph)
    plans = (random_plan(graph, mesh=mesh, seed=s, offers=offers, replicated=share) for s in range(2000))
    return next(plan for plan in plans if forms(plan).count(form) > 1)


@pytest.mark.parametrize("mesh", ["ep=2", "ep=3", "ep=4", "dp=2,ep=2", "ep=2,tp=2"])
@pytest.mark.parametrize("form", ["exchange", "lookup"])
def test_experts_are_sharded_on_any_mesh(captured, mesh, form):
    model, x, graph = captured
    report = sw.verify(model, (x,), plan=planned(graph, mesh, form), only_plan=True)
    assert report.ok, report


def test_tokens_are_exchanged_on_gloo(captured):
    model, x, graph = captured
    report = sw.verify(model, (x,), plan=planned(graph, "ep=4", "exchange"), only_plan=True, backend="gloo")
    assert report.ok, report
    assert "by values" in str(report)


def qwen2() -> nn.Module:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    own = {"moe_intermediate_size": 12, "shared_expert_intermediate_size": 12}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**SIZES, **own, num_experts=4, num_experts_per_tok=2))


def qwen3() -> nn.Module:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    own = {"moe_intermediate_size": 12, "head_dim": 8}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **own, num_experts=4, num_experts_per_tok=2))


def deepseek() -> nn.Module:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    heads = {
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    }
    own = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    config = DeepseekV3Config(**SIZES, **heads, **own, moe_intermediate_size=12, first_k_dense_replace=0)
    return DeepseekV3ForCausalLM(config)


@pytest.mark.parametrize(
    "build",
    [mixtral, *(pytest.param(build, marks=pytest.mark.long) for build in (gpt_oss, qwen2, qwen3, deepseek))],
)
def test_models_whose_experts_are_sharded_compute_the_same(build):
    torch.manual_seed(0)
    model, ids = build(), torch.randint(32, (4, 6))
    graph = sw.capture(model, (), {"input_ids": ids, "labels": ids})
    for form in ("exchange", "lookup"):
        offers = Offers(graph)
        plans = (random_plan(graph, mesh="a=2,b=2", seed=seed, offers=offers) for seed in range(400))
        plan = next(plan for plan in plans if form in forms(plan))
        report = sw.verify(model, (), {"input_ids": ids, "labels": ids}, plan=plan, only_plan=True)
        assert report.ok, report
