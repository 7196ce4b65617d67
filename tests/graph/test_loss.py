"""Losses outside of the model: one graph of both, under the model's names."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise.graph import run, with_loss


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x, *, scale=1.0):
        self.last = x
        return {"logits": scale * self.body(x)}


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, made, labels):
        return F.cross_entropy(made["logits"], labels, self.weights)


def plain(made, labels, smoothing=0.0):
    return F.cross_entropy(made["logits"], labels, label_smoothing=smoothing)


x, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])


@pytest.mark.parametrize("loss_fn", [plain, Weighted()], ids=["function", "module"])
def test_the_graph_computes_the_loss_and_the_models_gradients(loss_fn):
    model = Net()
    graph = sw.capture(model, (x,), {"labels": labels, "scale": 2.0}, loss_fn=loss_fn)
    ran = run(graph, with_loss(model, loss_fn), (x,), {"labels": labels, "scale": 2.0})
    loss = loss_fn(model(x, scale=2.0), labels)
    loss.backward()
    torch.testing.assert_close(ran.outputs["output"], loss.detach())
    assert list(ran.gradients) == ["body.weight", "body.bias"]
    torch.testing.assert_close(ran.gradients["body.weight"], model.body.weight.grad)


def test_the_tensors_of_a_loss_are_part_of_the_graph():
    graph = sw.capture(Net(), (x,), {"labels": labels}, loss_fn=Weighted())
    assert [entry.target for entry in graph.with_role("buffer")] == ["loss_fn.weights"]


def test_the_model_itself_does_not_change():
    model = Net()
    before = dict(vars(model))
    sw.capture(model, (x,), {"labels": labels}, loss_fn=plain)
    assert vars(model) == before and list(model._modules) == ["body"]


def test_an_argument_that_both_take_goes_to_the_loss():
    class Own(Net):
        def forward(self, x, labels=None):
            assert labels is None
            return super().forward(x)

    graph = sw.capture(Own(), (x,), {"labels": labels}, loss_fn=plain)
    assert [entry.target for entry in graph.with_role("user_input")] == ["x", "labels"]


def test_what_a_loss_cannot_be_combined_with_is_refused():
    model = Net()
    with pytest.raises(sw.UsageError, match="loss_fn is 3: give a function of the model's result"):
        sw.capture(model, (x,), loss_fn=3)
    model.register_forward_hook(lambda *_: None)
    with pytest.raises(sw.UsageError, match="has hooks on its own call"):
        sw.capture(model, (x,), loss_fn=plain)
