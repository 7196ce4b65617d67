"""A model that cannot be captured: the reason, and the line."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from shardwise.errors import UsageError
from shardwise.graph import capture
from tests.versions import from_torch

LINES = from_torch("2.13", "torch keeps the lines of modules alone")


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        while y.sum() < 10:  # the branch
            y = y + 1
        return y


def reads_a_number(x):
    return torch.arange(x.abs().sum().int().item()) * x.sum()  # the number


def picks(x):
    return x[x > 0]  # the picking


def mismatched(x):
    return x @ x  # the product


def differentiates(x):
    return torch.func.grad(lambda z: (z**3).sum())(x)  # the gradient


def jacobians(x):
    return torch.func.vmap(torch.func.jacrev(torch.sin))(x)  # the jacobian


def leaves_torch(x):
    return x * float(x.detach().numpy().sum())  # the array


def own_mistake(x):
    raise KeyError("missing")  # the mistake


@pytest.mark.parametrize(
    ("model", "mark", "reason"),
    [
        (Branch(), "the branch", "depends on tensor values"),
        pytest.param(reads_a_number, "the number", "leave out .item()", marks=LINES),
        pytest.param(picks, "the picking", "the shape of a result depends on tensor values", marks=LINES),
        (mismatched, "the product", "[3, 4] X [3, 4]"),
        (differentiates, "the gradient", "use torch.autograd.grad"),
        (jacobians, "the jacobian", "use torch.autograd.grad"),
        (leaves_torch, "the array", "compute with torch instead"),
        (own_mistake, "the mistake", "KeyError: 'missing'"),
    ],
    ids=["branch", "item", "mask", "shapes", "func.grad", "jacrev", "numpy", "own"],
)
def test_the_message_is_one_line_with_the_reason_and_the_place(model, mark, reason, capfd):
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if f"# {mark}" in text)
    with pytest.raises(UsageError) as caught:
        capture(model, (torch.randn(3, 4, requires_grad=True),))
    message = str(caught.value)
    assert f"{__file__}:{line}" in message
    assert reason in message
    assert "\n" not in message
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


def test_wrong_arguments():
    with pytest.raises(UsageError, match="Linear cannot be captured: TypeError: too many positional"):
        capture(nn.Linear(3, 3), (torch.randn(2, 3), torch.randn(2, 3)))


def test_not_a_program():
    with pytest.raises(UsageError, match=r"give an nn.Module or a function"):
        capture("model", ())


def test_a_program_of_torchscript():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)  # of torch.jit.trace, from torch 2.14 on
        script = torch.jit.trace(nn.Linear(3, 3), torch.randn(2, 3))
    with pytest.raises(
        UsageError, match="TorchScript cannot be captured: give the Python module or function"
    ):
        capture(script, (torch.randn(2, 3),))


def test_lazy_modules():
    with pytest.raises(
        UsageError, match="lazy modules that have no parameters yet; call the model once before"
    ):
        capture(nn.Sequential(nn.LazyLinear(3)), (torch.randn(2, 3),))


def test_arguments_of_unknown_classes():
    class Batch:
        x = torch.randn(2, 3)

    with pytest.raises(UsageError, match=r"argument is an object of a class .* in a dict or a tuple$"):
        capture(lambda batch: batch.x.sum(), (Batch(),))


def test_sparse_tensors():
    with pytest.raises(UsageError, match="a sparse_coo tensor cannot be captured"):
        capture(torch.sum, (torch.eye(3).to_sparse(),))


def test_sparse_tensors_inside():
    with pytest.raises(UsageError, match=r"computes with a sparse_coo tensor.*use a dense one"):
        capture(
            lambda x: torch.sparse.mm(torch.eye(3).to_sparse(), x), (torch.randn(3, 2, requires_grad=True),)
        )


def test_nothing_to_train():
    with pytest.raises(UsageError, match=r"nothing to train.*training=False"):
        capture(lambda x: x + 1, (torch.randn(3),))


def test_a_parameter_that_is_no_argument_is_not_dropped_silently():
    weight = torch.randn(3, requires_grad=True)
    with pytest.raises(UsageError, match=r"tensor of shape \[3\] that requires a gradient"):
        capture(lambda x: (x * weight).sum(), (torch.randn(3, requires_grad=True),))


def test_a_write_to_a_tensor_that_is_not_registered():
    class Counting(nn.Linear):
        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = Counting(3, 3)
    model.calls = torch.zeros(1)
    with pytest.raises(
        UsageError, match=r"Counting cannot be captured: it writes in place .* register_buffer$"
    ):
        capture(model, (torch.randn(2, 3),))
    assert model.calls == 0


def test_an_unknown_loss():
    with pytest.raises(UsageError, match="no output 'los' to start backward from: use one of loss, y"):
        capture(lambda x: {"loss": x.sum(), "y": x + 1}, (torch.randn(3, requires_grad=True),), loss="los")


def test_a_loaded_graph_does_not_run():
    from shardwise.graph import Graph, run

    graph = capture(nn.Linear(3, 3), (torch.randn(2, 3),))
    with pytest.raises(UsageError, match="was loaded from JSON and cannot be run"):
        run(Graph.from_json(graph.to_json()), nn.Linear(3, 3), (torch.randn(2, 3),))
