"""Rows that are selected by values are padded: what is computed of them is what the program computes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise.errors import UsageError
from shardwise.graph import capture, run
from shardwise.planning import random_plan


class Program(nn.Module):
    """A linear layer, and a function of what it computes."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function
        self.experts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x, mask):
        return self.function(self, self.layer(x), mask)


def sums(module, y, mask):
    rows = y[mask]
    return (
        rows.sum()
        + rows.mean()
        + rows.pow(2).mean(0).prod()
        + rows.amax()
        - rows.min(0)[0].sum()
        + rows.std()
    )


def measures(module, y, mask):
    rows = F.normalize(y[mask], dim=-1)
    return (
        rows.norm() + rows.logsumexp(0).sum() + (rows.shape[0] * rows.sum()) / rows.numel() + (rows > 9).any()
    )


def losses(module, y, mask):
    labels = y.detach().argmax(-1).masked_fill(~mask, -100)
    kept = labels != -100
    classes = F.cross_entropy(y[kept], labels[kept]) + F.nll_loss(y[kept].log_softmax(-1), labels[kept])
    numbers = F.mse_loss(y[mask], 2 * y.detach()[mask]) + F.smooth_l1_loss(
        y[mask], y[mask].sign(), reduction="sum"
    )
    return classes + numbers + F.binary_cross_entropy_with_logits(y[mask][:, 0], mask[mask].to(y.dtype))


def logarithms(module, y, mask):
    positive = y.detach().clone().masked_fill(~mask[..., None], 0.0).abs() * y.sigmoid()
    return positive[positive > 0].log().mean()


def shapes(module, y, mask):
    rows = module.experts[0](y[mask]).unflatten(-1, (2, 2)).transpose(1, 2)
    rows = torch.cat([rows, rows.flip(1)], 1).reshape(rows.shape[0], -1).softmax(-1)
    return (rows.unsqueeze(0)[0, :, 1:3] @ rows[:, :2].sum(0)[:, None]).sum()


def products(module, y, mask):
    rows = y[mask]
    return (rows.T @ rows).pow(2).sum() + (rows[:, None] * rows[..., None]).sum()


def writes(module, y, mask):
    made = torch.zeros_like(y)
    made[mask] = module.experts[0](y[mask])
    made[~mask] = 2.0
    made[mask] *= 3
    made[mask] += y.new_ones(4)
    made[..., 0][mask] = y[..., 1][mask]
    return made.pow(2).sum()


def moves(module, y, mask):
    """By one mask out, by another in, in the order of the rows."""
    first = torch.zeros_like(y)
    first[mask.flip(1)] = y[mask]
    return (first * torch.arange(4.0)).sum() + torch.zeros_like(y).masked_scatter(mask[..., None], y).prod(
        -1
    ).sum()


def positions(module, y, mask):
    rows, columns = torch.where(mask)
    made = torch.zeros(y.shape[0], 4).index_add(0, rows, y[rows, columns])
    made[mask.any(1).nonzero()[:, 0]] += 1.0
    return made.pow(2).sum() + y[mask.nonzero().unbind(1)].sum()


def routes(module, y, mask):
    tokens = y.flatten(0, 1)
    weights, chosen = tokens[:, :2].softmax(-1).topk(2)
    made = torch.zeros_like(tokens)
    for number, expert in enumerate(module.experts):
        token, place = torch.where(chosen.detach() == number)
        if token.numel() == 0:
            continue
        made[token] += expert(tokens[token]) * weights[token, place, None]
    return made.pow(2).sum()


def selects(module, y, mask):
    return (
        torch.masked_select(y, mask[..., None]).mean()
        - torch.masked_select(y.detach(), mask[..., None]).mean()
    )


PROGRAMS = [
    *(sums, measures, losses, logarithms, shapes, products, writes, moves, positions, routes, selects),
]


def inputs():
    torch.manual_seed(0)
    mask = torch.rand(2, 6) > 0.4
    mask[:, 0], mask[:, 1] = True, False
    return torch.randn(2, 6, 4), mask


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_rows_that_do_not_count_change_nothing(function):
    model, args = Program(function), inputs()
    ran = run(graph := capture(model, args), model, args)
    wanted = model(*args)
    wanted.backward()
    torch.testing.assert_close(ran.outputs["output"], wanted.detach())
    for name, gradient in ran.gradients.items():
        given = model.get_parameter(name).grad
        if given is None or gradient is None:
            assert all(each is None or not each.any() for each in (gradient, given))
        else:
            torch.testing.assert_close(gradient, given, rtol=1e-4, atol=1e-4)
    assert any("rows that are selected by values" in note for note in graph.notes)


def test_plans_of_them_are_verified():
    model, args = Program(routes), inputs()
    plan = random_plan(capture(model, args), mesh="a=2", seed=0)
    assert sw.verify(model, args, plan=plan, only_plan=True).ok


def other_rows(module, y, mask):
    return (y[mask] * y[~mask]).sum()


def drawn_masks(module, y, mask):
    one, other = torch.rand(2, 6) > 0.5, torch.rand(2, 6) > 0.5
    return (y[one] * y[other]).sum()


def rows_along(module, y, mask):
    return y[mask].cumsum(0).sum()


def first_rows(module, y, mask):
    return y[mask][:3].sum()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def own_functions(module, y, mask):
    return Doubled.apply(y[mask]).mean()


def results(module, y, mask):
    return y[mask]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (other_rows, "select both by the same mask"),
        (drawn_masks, "select both by the same mask"),
        (rows_along, "cumsum along rows that a mask selects"),
        (first_rows, "rows that a mask selects"),
        (own_functions, "Doubled gets rows that a mask selects"),
        (results, "keep the full shape"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_has_no_padded_form_is_refused(function, reason):
    with pytest.raises(UsageError, match=reason):
        capture(Program(function), inputs())
