"""Values that follow from a program alone: it may read them, branch on them and select by them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shardwise.graph import capture, run


class Program(nn.Module):
    """A linear layer, and a function of what it computes."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.layer(x))


def branches_on_a_written_mask(y):
    mask = torch.ones(y.shape[:1], dtype=torch.long)
    mask[2:] = 0
    mask.mul_(3)
    return y.sum() if (mask > 0).sum().item() == 2 else y.prod()


def sees_what_is_written_through_a_view(y):
    mask = y.new_zeros(y.shape[0], 2)
    half = mask[:, 1]
    half += 1
    return y.sum() if mask.any() and not mask.all() else y.prod()


def selects_by_a_mask(y):
    kinds = torch.arange(y.shape[0]) % 3
    made = torch.zeros_like(y)
    for kind in range(3):
        chosen = kinds == kind
        made[chosen] += y[chosen] * (kind + 1)
    return made.sum(0)


def selects_by_positions(y):
    kept = F.pad(torch.ones(y.shape[0] - 2), (1, 1)).nonzero(as_tuple=True)
    return y[kept].sum(0), y[:, torch.tensor([True, False, True, True])].sum(0)


def repeats_and_selects(y):
    repeated = y.repeat_interleave(torch.tensor([1, 0, 2, 1, 3, 1]), dim=0)
    flat = torch.repeat_interleave(y, torch.tensor(2))
    chosen = torch.masked_select(y, torch.arange(4) > 1)
    return repeated.sum(0), flat.sum(), chosen.view(6, 2).sum(0)


def masks_more_than_torch_keeps(y):
    mask = torch.ones(y.shape[0], 2000)
    return y.sum() if bool((mask == 1).all()) else y.prod()


@pytest.mark.parametrize(
    "function",
    [
        branches_on_a_written_mask,
        sees_what_is_written_through_a_view,
        selects_by_a_mask,
        selects_by_positions,
        repeats_and_selects,
        masks_more_than_torch_keeps,
    ],
    ids=lambda function: function.__name__,
)
def test_a_program_may_use_values_that_follow_from_it_alone(function):
    module, x = Program(function), torch.randn(6, 4)
    found = run(capture(module, (x,)), module, (x,)).outputs
    wanted = module(x)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for one, other in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(one, other.detach())


def writes_data(y):
    mask = torch.ones(y.shape[0])
    view = mask[1:]
    mask[0] = y[0, 0].detach()
    return y.sum() if view.sum() > 3 else y.prod()


def draws(y):
    mask = F.dropout(torch.ones(y.shape[0]), 0.5, training=True)
    return y.sum() if mask.sum() > 3 else y.prod()


@pytest.mark.parametrize("function", [writes_data, draws], ids=lambda function: function.__name__)
def test_values_that_depend_on_data_or_chance_are_not_known(function):
    graph = capture(Program(function), (torch.randn(6, 4),))
    assert any("both branches" in note for note in graph.notes)
