"""From at most three annotations, transformer blocks get the layout of Megatron-LM, and every plan verifies."""

from pathlib import Path

import pytest
import torch

import shardwise as sw
from shardwise.modules import module_of

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = [
    *("mlp", "llama", "gpt2", "bert", "t5", "vit", "mixtral"),
    *("cnn", "unet", "lstm", "recommender", "custom_op"),
    *("mistral", "qwen3", "gemma2", "olmo2", "phi3", "opt", "gpt_neox", "bloom", "roberta", "starcoder2"),
]
QUICK = ("mlp", "gpt2", "recommender")


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return module_of(EXAMPLES / "annotated.py").ANNOTATED


def test_there_are_twelve_models_and_ten_architectures_of_hugging_face(cases, models):
    assert sorted(cases) == sorted(NAMES)
    assert set(models.ZOO) < set(cases) and len(cases) == 22
    assert max(len(annotated.shardings) for annotated in cases.values()) == 3


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in NAMES]
)
def test_annotations_give_megatron_s_layout_and_a_plan_that_verifies(cases, name):
    torch.manual_seed(0)
    annotated = cases[name]
    model, args, kwargs = annotated.build()
    plan = sw.plan(model, args, kwargs, mesh="dp=2,tp=2", shardings=annotated.shardings, compare=False)
    assert annotated.wrong(plan) == []
    assert (annotated.linear_layers(plan) > 0) == (len(annotated.shardings) > 1)
    assert plan.cost.seconds > 0 and plan.bound <= plan.cost.seconds
    assert sw.verify(model, args, kwargs, plan=plan, only_plan=True).ok
