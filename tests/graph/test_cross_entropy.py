"""The cross entropy of a linear layer as one operator: its values, and how programs with it are captured."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwise as sw
from tests.versions import from_torch

HIDDEN, WEIGHT = torch.randn(3, 7, 8, dtype=torch.float64), torch.randn(50, 8, dtype=torch.float64)
TARGET = torch.arange(21).view(3, 7) * 11 % 50


def reference(hidden: Tensor, weight: Tensor, target: Tensor, **options) -> Tensor:
    return F.cross_entropy((hidden @ weight.T).flatten(0, -2), target.flatten(), **options)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignored", [-100, 22])
@pytest.mark.parametrize("trained", ["both", "hidden", "weight"])
def test_loss_and_gradients_are_those_of_the_parts(reduction, ignored, trained):
    options = {"reduction": reduction, "ignore_index": ignored}
    given = [HIDDEN.clone(), WEIGHT.clone()]
    wanted = [
        t.requires_grad_(trained in ("both", name))
        for t, name in zip(given, ("hidden", "weight"), strict=True)
    ]
    wanted = [t for t in wanted if t.requires_grad]
    found, right = (run(*given, TARGET, **options) for run in (sw.linear_cross_entropy, reference))
    torch.testing.assert_close(found, right)
    for ours, theirs in zip(*(torch.autograd.grad(3 * each, wanted) for each in (found, right)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_loss_of_half_precision_is_as_exact_as_that_of_float32():
    hidden, weight = HIDDEN.bfloat16().requires_grad_(), WEIGHT.bfloat16()
    found = sw.linear_cross_entropy(hidden, weight, TARGET)
    wide = hidden.detach().float().requires_grad_()
    right = reference(wide, weight.float(), TARGET)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, right, rtol=1e-2, atol=0)
    torch.testing.assert_close(
        *(torch.autograd.grad(*pair)[0].float() for pair in ((found, hidden), (right, wide))),
        rtol=0.05,
        atol=1e-3,
    )


def test_autocast_decides_the_dtype_of_the_products():
    with torch.autocast("cpu", torch.bfloat16):
        found = sw.linear_cross_entropy(HIDDEN.float(), WEIGHT.float(), TARGET)
    assert torch.equal(found, sw.linear_cross_entropy(HIDDEN.bfloat16(), WEIGHT.bfloat16(), TARGET))


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(sw.UsageError, match=r"\[3, 7, 8\], \[50, 8\], \[21\]: they must be"):
        sw.linear_cross_entropy(HIDDEN, WEIGHT, TARGET.flatten())
    with pytest.raises(sw.UsageError, match="use 'mean' or 'sum'"):
        sw.linear_cross_entropy(HIDDEN, WEIGHT, TARGET, reduction="none")


class Language(nn.Module):
    """A word for every word; the loss by our operator, or by torch's in chunks."""

    def __init__(self, options=None, reduction: str = "mean") -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        self.options, self.reduction = options, reduction

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids)
        if self.options is None:
            return sw.linear_cross_entropy(hidden, self.head.weight, ids, reduction=self.reduction)
        given = hidden.flatten(0, 1), self.head.weight, ids.flatten()
        return F.linear_cross_entropy(*given, reduction=self.reduction, options=self.options).sum()


IDS = TARGET.clone()


@from_torch("2.13", "has no cross entropy of a layer in chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_torchs_operator_in_chunks_is_captured(reduction):
    torch.manual_seed(0)
    model = Language(nn.LinearCrossEntropyOptions(), reduction)
    graph = sw.capture(model, (IDS,))
    assert ("shardwise.linear_cross_entropy.default" in {node.op for node in graph.nodes}) == (
        reduction != "none"
    )
    plan = sw.plan(model, (IDS,), mesh="tp=2", cluster="laptop", compare=False)
    report = sw.verify(model, (IDS,), plan=plan, only_plan=True)
    assert report.ok, report


def language(tokens: int, width: int, classes: int):
    """A model in bfloat16, and its tokens, on the meta device."""
    with torch.device("meta"):
        model = Language()
        model.embed, model.head = nn.Embedding(classes, width), nn.Linear(width, classes, bias=False)
        return model.bfloat16(), torch.empty(2, tokens // 2, dtype=torch.int64)


def test_logits_are_never_whole():
    """No tensor of a graph, and nothing that a call holds for itself, is as large as an eighth of the logits."""
    tokens, classes = 32768, 32768
    model, ids = language(tokens, 512, classes)
    graph = sw.capture(model, (ids,))
    logits = 4 * tokens * classes
    assert max(t.bytes for node in graph.nodes for t in node.outputs if t is not None) <= logits / 32
    plan = sw.plan(model, (ids,), mesh="tp=1", cluster="h100", compare=False)
    assert max(plan.cost.held) - plan.cost.lasting < logits / 8
