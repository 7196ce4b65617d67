"""The problem counts no more memory, and no more time, than a plan has: with random choices for whole models."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import capture
from shardwise.planning import Planner, plan_graph
from shardwise.planning._fold import Folded
from shardwise.planning._items import Items
from shardwise.planning._kinds import UNIT
from shardwise.planning._memory import Memory
from shardwise.planning._pins import Pins
from shardwise.solver import FORBIDDEN, Solution


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).view(4, 8, 4, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(y.transpose(1, 2).reshape(4, 8, 16))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.last = nn.Linear(8 * 16, 4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.convolution(x))).flatten(1)).square().mean()


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 12)

    def forward(self, x, target):
        return nn.functional.cross_entropy(self.head(x), target)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(16), nn.RMSNorm(16)
        self.up, self.down = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, x):
        x = x + self.up(self.first(x))
        return x + self.down(torch.nn.functional.silu(self.second(x)))


def views(x, y):
    """Views of views, parts of tensors, repeated elements; arguments and views given back, one of them twice."""
    z = x * x
    a, b = z.split(4, dim=0)
    tall = x[:1].unsqueeze(0).expand(3, 2, 8).permute(2, 0, 1)
    return a + y[:4], b.t().contiguous(), z, y, tall.sum(0), z.t()[1:], y.t()


CASES = {
    "attention": lambda: capture(Attention(), (torch.empty(4, 8, 16),)),
    "convolution": lambda: capture(Convolution(), (torch.empty(4, 4, 4, 4),)),
    "views": lambda: capture(views, (torch.empty(8, 8), torch.empty(8, 8)), training=False),
    "compiled": lambda: capture(Attention(), (torch.empty(4, 8, 16),), execution="compiled"),
    "block": lambda: capture(Block(), (torch.empty(8, 16, requires_grad=True),), execution="compiled"),
    "loss": lambda: capture(Loss(), (torch.empty(8, 16), torch.empty(8, dtype=torch.int64))),
    "uneven": lambda: capture(nn.Linear(5, 7), (torch.empty(3, 5, requires_grad=True),)),
}


@pytest.fixture(scope="module", params=CASES)
def graph(request):
    with torch.device("meta"):
        return CASES[request.param]()


def random_choices(items: Items, r: random.Random) -> list[int]:
    """Choices that go together: one after another, at random, now and then the cheapest."""
    near: list[list[tuple[int, np.ndarray]]] = [[] for _ in items.all]
    for tie in items.ties:
        near[tie.a].append((tie.b, tie.table))
        near[tie.b].append((tie.a, tie.table.T))
    greedy = r.choice([0.0, 0.5, 0.9, 1.0])
    while True:
        chosen: dict[int, int] = {}
        for place, item in enumerate(items.all):
            cost = item.cost.astype(float)
            for other, table in near[place]:
                if other in chosen:
                    cost = cost + table[:, chosen[other]]
            options = np.flatnonzero(cost < FORBIDDEN)
            if not len(options):
                break
            if r.random() < greedy:
                options = options[cost[options] == cost[options].min()]
            chosen[place] = int(r.choice(options.tolist()))
        else:
            return [chosen[place] for place in range(len(items.all))]


def counted(items: Items, memory: Memory, chosen: list[int]) -> tuple[float, int]:
    """What the problem counts: seconds, and the most bytes at any point, every item that only sees as low as it can."""
    full: list[int | None] = [*chosen, *(None for _ in memory.uses)]
    near: dict[int, list[tuple[int, np.ndarray]]] = {}
    for tie in memory.ties:
        near.setdefault(tie.a, []).append((tie.b, tie.table))
        near.setdefault(tie.b, []).append((tie.a, tie.table.T))
    order = ("use", "both", "largest")  # each sees those before it
    for kind in order:
        for number, item in enumerate(memory.uses):
            if item.label[0] == kind:
                place = len(items.all) + number
                allowed = np.ones(len(item), bool)
                for other, table in near[place]:
                    if full[other] is not None:
                        allowed &= table[:, full[other]] < FORBIDDEN
                assert allowed.any()
                full[place] = int(np.argmax(allowed))
    load = np.zeros(memory.points.end, np.int64)
    for place, holdings in memory.held.items():
        for holding in holdings:
            load[holding.begin : holding.end] += holding.usage[full[place]]
    units = sum(int(item.cost[c]) for item, c in zip(items.all, chosen, strict=True))
    units += sum(int(tie.table[chosen[tie.a], chosen[tie.b]]) for tie in items.ties)
    return units * UNIT, int(load.max())


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("mesh", ["d=2", "a=2,b=3"])
def test_a_plan_takes_and_holds_at_least_what_its_problem_counts(graph, mesh, pairs):
    planner = Planner(graph, sw.Mesh.parse(mesh), sw.Cluster.of("laptop"))
    items = planner._items(Pins(planner.mesh))
    memory = Memory(items, pairs=pairs)
    same = Folded(None, np.arange(len(items.all)), 0)
    shares = []
    for seed in range(12):
        chosen = random_choices(items, random.Random(seed))
        plan = planner._read(items, same, Solution("", chosen, 0, 0, 0, 0.0), Pins(planner.mesh))
        seconds, peak = counted(items, memory, chosen)
        assert seconds <= plan.cost.seconds * (1 + 1e-9) + 10 * UNIT
        assert peak <= plan.cost.peak
        shares.append(peak / plan.cost.peak)
    assert np.mean(shares) > (0.95 if pairs else 0.6)  # and not much less


def test_a_compiled_kernel_writes_over_what_it_is_the_last_to_read():
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Linear(64, 256, bias=False), nn.ReLU(), nn.Linear(256, 64, bias=False)
        ).requires_grad_(False)
        x = torch.empty(64, 64)
    peaks = {}
    for how in ("eager", "compiled"):
        graph = capture(model, (x,), training=False, execution=how)
        peaks[how] = plan_graph(graph, mesh="d=1", cluster="laptop").cost.peak // x.nbytes
    # Two weights of 4, and at the same time two hidden tensors of 4; or one of them and the input, of 1.
    assert peaks == {"eager": 16, "compiled": 13}


def test_what_backward_is_given_is_held_by_whoever_calls_it():
    x = torch.empty(64, device="meta", requires_grad=True)
    graph = capture(lambda x: x.sin().exp().sin(), (x,))
    plan = plan_graph(graph, mesh="d=1", cluster="laptop", optimizer="none")
    # At the end there are argument and result, what backward was given, the gradient and its two last factors.
    assert plan.cost.held[-1] == 6 * x.nbytes
