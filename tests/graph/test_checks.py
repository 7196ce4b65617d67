"""What a program does with tensor values besides computing: error checks are left out, with a note; the rest is
refused in a sentence that says what to do."""

import random
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shardwise.errors import UsageError
from shardwise.graph import capture, run


class Program(nn.Module):
    """A linear layer, and a function of the module and what the layer computes."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self, self.layer(x))


def raises_unless_finite(module, y):
    if not torch.isfinite(y).all():
        raise ValueError("not finite")
    return y.sum()


def counts(module, y):
    count = (y > 0).sum()
    if count != 7:
        raise ValueError("another number of tokens")
    return y.sum()


def counts_in_python(module, y):
    count = (y > 0).sum().item()
    if count != 7:
        raise ValueError("another number of tokens")
    return y.sum()


def asserts(module, y):
    assert (y < 1e9).all(), "too large"
    return y.sum()


def asserts_by_torch(module, y):
    torch._assert((y < 1e9).all(), "too large")
    return y.sum()


def warns(module, y):
    if (y > 1e9).any():
        warnings.warn("large", stacklevel=1)
    return y.sum()


def several_conditions(module, y):
    if module.training and not (torch.isfinite(y).all() and (y < 1e9).all()):
        raise ValueError("not finite, or too large")
    return y.sum()


def raises_otherwise(module, y):
    if (y < 1e9).all():
        result = y.sum()
    else:
        raise ValueError("too large")
    return result


def repairs_infinities(module, y):
    if torch.isinf(y).any() or (~torch.isfinite(y)).any():
        y = y.clamp(-1e4, 1e4)
    return y.sum()


CHECKS = [
    *(raises_unless_finite, counts, counts_in_python, asserts, asserts_by_torch, warns, several_conditions),
    *(raises_otherwise, repairs_infinities),
]


@pytest.mark.parametrize("function", CHECKS, ids=lambda function: function.__name__)
def test_error_checks_are_left_out_with_a_note(function):
    model, x = Program(function), torch.randn(4, 4)
    graph = capture(model, (x,))
    assert graph.notes
    assert all(re.match(r"an error check is left out: .*test_checks.py:\d+", note) for note in graph.notes)
    assert graph.notes[0] in str(graph)
    assert torch.allclose(run(graph, model, (x,)).outputs["output"], model.layer(x).sum())


def branches(module, y):
    if y.sum() > 0:
        return y.sum()
    return -y.sum()


def both_compute(module, y):
    return y.sum() if (y > 0).all() else y.mean()


def repairs_what_is_large(module, y):
    if (y > 1e4).any():
        y = y.clamp(max=1e4)
    return y.sum()


def skips_at_random(module, y):
    if module.training and torch.rand([]) < 0.1:
        return y.sum()
    return (2 * y).sum()


def packs(module, y):
    return nn.utils.rnn.pack_padded_sequence(y.reshape(2, 2, 4), torch.tensor([2, 1]), True).data.sum()


def runs_packed(module, y):
    packed = nn.utils.rnn.pack_padded_sequence(y.reshape(2, 2, 4), torch.tensor([2, 1]), True)
    return nn.LSTM(4, 4)(packed)[0].data.sum()


def nests(module, y):
    return torch.nested.nested_tensor([y[:1], y[1:]]).to_padded_tensor(0.0).sum() + y.sum()


def scales_by_a_number(module, y):
    return y.sum() * y.abs().max().item()


def aligns(module, y):
    scores = F.log_softmax(y.reshape(4, 1, 4), -1)
    return F.ctc_loss(scores, torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2]))


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (packs, "padded sequences"),
        (runs_packed, "padded sequences"),
        (nests, "padded ones and a mask"),
        (aligns, "outside of the model"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_computes_is_refused_with_what_to_do(function, advice):
    with pytest.raises(UsageError, match=advice):
        capture(Program(function), (torch.randn(4, 4),))


@pytest.mark.parametrize(
    "function",
    [branches, both_compute, repairs_what_is_large, skips_at_random, scales_by_a_number],
    ids=lambda function: function.__name__,
)
def test_what_computes_is_no_error_check(function):
    graph = capture(Program(function), (torch.randn(4, 4),))
    assert not any("error check" in note for note in graph.notes)


def test_matrices_are_factorised_without_the_check_that_they_can_be():
    def factorises(module, y):
        return torch.linalg.cholesky(y.T @ y + torch.eye(4)).sum()

    model, x = Program(factorises), torch.randn(4, 4)
    graph = capture(model, (x,))
    assert torch.allclose(run(graph, model, (x,)).outputs["output"], model(x))


def test_values_that_follow_from_the_program_alone_can_be_read():
    def windows(module, y):
        ends = torch.tensor([1, 3, 4]).cumsum(0)
        return sum(y[:end].sum() for end in ends.tolist())

    model, x = Program(windows), torch.randn(8, 4)
    graph = capture(model, (x,))
    assert torch.allclose(run(graph, model, (x,)).outputs["output"], model(x))


def test_a_mask_that_a_program_makes_itself_can_be_tested(capfd):
    def forward(module, y):
        mask = torch.ones(y.shape[0], 3) * torch.arange(3)
        return y.sum() * (2 if (mask > 5).any().item() else 3)

    module, x = Program(forward), torch.randn(4, 4)
    ran = run(capture(module, (x,)), module, (x,))
    torch.testing.assert_close(ran.outputs["output"], module(x).detach())
    assert capfd.readouterr() == ("", "")


def test_a_mask_that_masks_nothing_is_not_dropped():
    def forward(module, y):
        mask = y.detach() > 1e9
        if not mask.any():
            mask = None
        return y.sum() if mask is None else y.masked_fill(mask, 0.0).sum()

    module, x = Program(forward), torch.randn(4, 4)
    graph = capture(module, (x,))
    torch.testing.assert_close(run(graph, module, (x,)).outputs["output"], module(x).detach())
    assert "if not mask.any():" in graph.notes[0]


def test_a_buffer_that_is_registered_while_it_runs_is_computed_in_every_call():
    def registers(module, y):
        if not hasattr(module, "positions"):
            module.register_buffer("positions", torch.arange(4.0), persistent=False)
        return (y + module.positions).sum()

    model, x = Program(registers), torch.randn(4, 4)
    graph = capture(model, (x,))
    assert not hasattr(model, "positions")
    assert "self.positions" in graph.notes[0]
    assert torch.allclose(run(graph, model, (x,)).outputs["output"], model(x))


def test_random_numbers_that_are_not_torchs_are_noted():
    def draws(module, y):
        return y.sum() * random.random()

    [note] = capture(Program(draws), (torch.randn(4, 4),)).notes
    assert "random numbers from Python or NumPy" in note
