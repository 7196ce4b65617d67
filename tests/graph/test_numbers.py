"""Numbers that a program takes from tensors are tensors of its graph."""

import math

import pytest
import torch
from torch import nn

from shardwise.errors import UsageError
from shardwise.graph import capture, run


class Program(nn.Module):
    """A linear layer, and a function of what it computes."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function
        self.register_buffer("place", torch.tensor([2]))
        self.register_buffer("queue", torch.randn(4, 8))

    def forward(self, x):
        return self.function(self, self.layer(x))


def scales(module, y):
    largest = y.abs().max().item()
    return (y / largest).sum() * (2.0 - largest) ** 2 + round(largest) + abs(-largest) // 1


def logs(module, y):
    loss = y.pow(2).mean()
    return loss, {
        "loss": loss.item(),
        "text": f"{loss.item():.3f}",
        "share": float((y > 0).sum() / y.numel()),
    }


def queues(module, y):
    place = int(module.place)
    scores = y @ module.queue.clone()
    module.queue[:, place : place + 3] = y.detach().T
    module.place[0] = (place + 3) % 8
    return scores.sum()


def crops(module, y):
    start = int((y.sum() > 0).long()) + 1
    return y[:, start : start + 2].sum() + y[start, ..., 1:].prod() + y.narrow(0, start, 1).sum()


def counts(module, y):
    total = 0
    for number in (y > 0).sum(0).tolist():
        total += number
    return y.sum() * total


def chooses(module, y):
    steps = int(module.place) * 3
    return y.sum() if steps > 5 else y.prod()


@pytest.mark.parametrize(
    "function", [scales, logs, queues, crops, counts, chooses], ids=lambda function: function.__name__
)
def test_numbers_from_tensors_are_computed_with(function):
    torch.manual_seed(0)
    model, x = Program(function), torch.randn(3, 4)
    ran = run(capture(model, (x,)), model, (x,))
    wanted = model(x)
    (wanted[0] if isinstance(wanted, tuple) else wanted).backward()
    found = {name: value for name, value in ran.outputs.items() if isinstance(value, torch.Tensor)}
    tensors = (
        [wanted]
        if isinstance(wanted, torch.Tensor)
        else [wanted[0], *map(torch.tensor, [wanted[1]["loss"], wanted[1]["share"]])]
    )
    for one, other in zip(found.values(), tensors, strict=True):
        torch.testing.assert_close(one, other.detach())
    torch.testing.assert_close(ran.gradients["layer.weight"], model.layer.weight.grad)
    for name, value in ran.mutations.items():
        torch.testing.assert_close(value, model.get_buffer(name))


def test_a_momentum_that_is_a_value():
    norm, x = nn.BatchNorm1d(4, momentum=None), torch.randn(6, 4)
    norm(x + 1)
    ran = run(capture(norm, (x,)), norm, (x,))
    norm(x)
    for name, value in ran.mutations.items():
        torch.testing.assert_close(value, norm.get_buffer(name))


def sizes(module, y):
    return y[:, : int(module.place)].sum()


def fills(module, y):
    return torch.ones(int(module.place), 3).sum() * y.sum()


def takes_a_root(module, y):
    return math.sqrt(y.pow(2).sum().item()) * y.sum()


@pytest.mark.parametrize("function", [sizes, fills, takes_a_root], ids=lambda function: function.__name__)
def test_a_size_that_is_a_value_is_refused(function):
    with pytest.raises(UsageError, match=r"torch.where|the value of a tensor|leave out"):
        capture(Program(function), (torch.randn(3, 4),))
