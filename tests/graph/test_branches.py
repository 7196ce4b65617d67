"""Branches on values: both are in the graph, and values and gradients are those of the branch that is taken."""

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.errors import UsageError
from shardwise.graph import branches_as_taken, capture, run
from shardwise.planning import random_plan


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, sign):
        y = self.linear(x)

        def root(z):
            return {"y": z.sqrt(), "n": z.detach().sum()}

        def line(z):
            return {"y": 3 * z, "n": z.detach().mean()}

        made = torch.cond((y.sum() * sign > 0).reshape(1), root, line, (y.abs() * (sign > 0),))
        return made["y"].sum() + made["n"]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_branch_that_is_taken_counts(sign):
    torch.manual_seed(0)
    model, args = Branches(), (torch.randn(3, 4), torch.tensor(sign))
    with torch.no_grad():
        model.linear.bias += 5.0
    graph = capture(model, args)
    ran = run(graph, model, args)
    with branches_as_taken():
        loss = model(*args)
    loss.backward()
    torch.testing.assert_close(ran.outputs["output"], loss.detach())
    # The root of zero, which is not taken, has no gradient.
    torch.testing.assert_close(ran.gradients["linear.weight"], model.linear.weight.grad)
    assert torch.isfinite(model.linear.weight.grad).all()
    assert graph.notes == ("both branches of torch.cond are computed, and the results of one are taken",)
    assert torch.cond.__module__.startswith("torch")
    assert sw.verify(model, args, plan=random_plan(graph, mesh="a=2", seed=0), only_plan=True).ok


def test_a_branch_on_a_python_number_is_taken_alone():
    def program(x):
        return torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,))

    graph = capture(program, (torch.randn(3, requires_grad=True),))
    assert not any(node.op.startswith("aten.where") for node in graph.nodes) and not graph.notes


# -- branches as Python writes them


class Program(nn.Module):
    """A linear layer, and a function of what it computes."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function, self.layers = (
            nn.Linear(4, 4),
            function,
            nn.ModuleList([nn.Linear(4, 4) for _ in "ab"]),
        )
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("largest", torch.zeros(1))

    def forward(self, x):
        return self.function(self, self.layer(x), x)


def returns_early(module, y, x):
    if x.sum() > 0:
        return y.sum()
    return y.pow(2).sum()


def returns_early_from_a_loop(module, y, x):
    for layer in module.layers:
        y = layer(y)
        if x.sum() > 0:
            return y.sum()
    return y.pow(2).sum()


def nests(module, y, x):
    total = x.sum()
    if total > 0:
        if total > 100:
            y = y * 3
        else:
            y, unused = y * 2, 5  # noqa: F841
    elif not total < -100:
        y = y - 1
    return y.sum()


def continues(module, y, x):
    for scale, layer in enumerate(module.layers):
        if module.training:
            y = y + 1
            if x.sum() > scale - 1:
                continue
        y = y + layer(y)
    return y.sum()


def stops(module, y, x):
    for step in range(4):
        y = y * 1.5
        if y.abs().max() > 3 * x.abs().sum().sign() * step:
            break
    else:
        y = y + 100
    return y.sum()


def combines(module, y, x):
    positive = x.sum() > 0
    both = positive and module.training
    either = not module.training or x.sum() < -1 or not positive
    return y.sum() * (2 if both else 3) + (y.prod() if either else y.max())


def keeps_flags_and_counts(module, y, x):
    skip, count = False, 1
    if x.sum() > 0:
        skip, count = True, count + 1
    if not skip:
        y = y * 2
    return y.sum() * count


def divides(module, y, x):
    size = (y * (x.sum() > 0)).sum()
    if size != 0:
        y = y / size
    return y.sum()


def collects(module, y, x):
    found = []
    if x.sum() > 0:
        found.append(y * 2)
    else:
        found.append(y * 3)
    made = torch.zeros_like(y)
    if x.sum() > 0:
        made[0] = y[1]
        made += 1
    return (found[0] + made).sum()


def normalises_at_times(module, y, x):
    if x.sum() > 0:
        y = module.norm(y)
    return y.pow(3).sum()


def within(module, y, x):
    with torch.no_grad():
        if x.sum() > 0:
            scale, power = x.mean(), 2.0
        else:
            scale, power = x.min(), 3.0
    return (y.sum() * scale) ** power


def keeps_a_range(module, y, x):
    """As observers of quantisation do, whose first range is that of the first batch."""
    if module.largest.max() < 1e-4:
        module.largest = module.largest + y.detach().abs().max()
    else:
        module.norm.running_mean.mul_(0.5)
        module.largest = module.largest * 0.9 + y.detach().abs().max() * 0.1
    return (y / module.largest).sum()


def counts_in_an_attribute(module, y, x):
    module.seen, module.kept = 1, [y]
    if x.sum() > 0:
        module.seen += 2
        module.kept.append(y * 2)
    else:
        module.kept.append(y.detach())
    return y.sum() * module.seen + module.kept[1].sum()


PROGRAMS = [
    *(
        returns_early,
        returns_early_from_a_loop,
        nests,
        continues,
        stops,
        combines,
        keeps_flags_and_counts,
        divides,
    ),
    *(collects, normalises_at_times, within, keeps_a_range, counts_in_an_attribute),
]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_of_two_branches_one_counts(function, sign):
    torch.manual_seed(0)
    model, x = Program(function), sign * torch.rand(3, 4)
    code = function.__code__
    ran = run(graph := capture(model, (x,)), model, (x,))
    assert function.__code__ is code and not [
        name for name in function.__globals__ if name.startswith("_shardwise")
    ]
    assert any(note.startswith("both branches at") and __file__ in note for note in graph.notes)
    loss = model(x)
    loss.backward()
    torch.testing.assert_close(ran.outputs["output"], loss.detach())
    for name, gradient in ran.gradients.items():
        wanted = model.get_parameter(name).grad
        if gradient is None or wanted is None:
            assert all(each is None or not each.any() for each in (gradient, wanted))
        else:
            torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-4)
    for name, value in ran.mutations.items():
        torch.testing.assert_close(value, model.get_buffer(name))


def skips_layers(module, y, x):
    for layer in module.layers:
        if torch.rand([]) < 0.5:
            continue
        y = y + nn.functional.dropout(layer(y), 0.5)
    return y.sum()


def test_layers_that_are_skipped_at_random_are_verified():
    model, args = Program(skips_layers), (torch.randn(4, 4),)
    graph = capture(model, args)
    for seed in range(4):
        assert sw.verify(
            model, args, plan=random_plan(graph, mesh="a=2", seed=seed), only_plan=True, seed=seed
        ).ok


def remembers(module, y, x):
    if x.sum() > 0:
        module.last = y
    return y.sum()


def changes_shape(module, y, x):
    if x.sum() > 0:
        y = y[:2]
    return y.sum()


def loops_until(module, y, x):
    while y.sum() < 10:
        y = y * 2 + 1
    return y.sum()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (remembers, r"writes to `module.last`, neither to a name nor to what there is before"),
        (changes_shape, r"leave y, which is used, in different forms"),
        (loops_until, r"loops_until|depends on tensor values here"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_branches_that_cannot_be_joined_are_refused(function, reason):
    with pytest.raises(UsageError, match=reason):
        capture(Program(function), (torch.randn(3, 4),))
