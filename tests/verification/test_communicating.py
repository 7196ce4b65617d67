"""Plans whose calls communicate inside, on simulated and on real ranks."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwise as sw
from shardwise.calls import Call
from shardwise.expansion import Choice
from shardwise.forms import is_communicating
from shardwise.placements import Row, is_shard
from shardwise.planning import Offers, Plan, random_plan
from shardwise.rules import offered_rows


class Attention(nn.Module):
    """Grouped causal attention, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        heads = (
            part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).square().mean()


def talking(call: Call) -> list[Row] | None:
    """Rows of a call; attention communicates where its sequence is sharded."""
    rows = offered_rows(call)
    if rows is None or "attention" not in call.name:
        return rows
    along = [row for row in rows if any(is_shard(p) and p.dim == 2 for p in row.inputs)]
    return [row for row in rows if is_communicating(row.local) or row not in along]


def forms(plan: Plan) -> list[str | None]:
    return [plan.choices[node.name].local for node in plan.graph.nodes if "attention" in node.op]


@pytest.fixture(scope="module")
def captured():
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(2, 9, 16)
    return model, x, sw.capture(model, (x,))


def planned(graph, mesh: str, seeds=range(400)) -> Plan:
    """A random plan in which attention communicates, forward and backward."""
    plans = (random_plan(graph, mesh=mesh, seed=s, offers=Offers(graph, known=talking)) for s in seeds)
    return next(plan for plan in plans if all(map(is_communicating, forms(plan))))


@pytest.mark.parametrize("mesh", ["cp=2", "cp=3", "cp=4", "dp=2,cp=2", "cp=2,tp=2", "a=2,cp=2,b=2"])
def test_ranks_attend_together_on_any_mesh(captured, mesh):
    model, x, graph = captured
    plan = planned(graph, mesh)
    report = sw.verify(model, (x,), plan=plan, only_plan=True)
    assert report.ok, report
    assert plan.cost.seconds == pytest.approx(sum(plan.cost.entries) + plan.cost.update + plan.cost.waiting)


def test_ranks_attend_together_on_gloo(captured):
    model, x, graph = captured
    report = sw.verify(model, (x,), plan=planned(graph, "cp=4"), only_plan=True, backend="gloo")
    assert report.ok, report  # the collectives and their bytes are those that were priced


class Images(nn.Module):
    """Convolutions, norms and pooling of images, and a softmax over their rows of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.begin, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.halve, self.grow = nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.batch, self.last = nn.BatchNorm2d(4), nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.silu(self.norm(self.begin(x))), 3, 1, 1)
        x = self.grow(F.avg_pool2d(self.batch(self.halve(x)), 3, 1, 1))
        return (self.last(x).softmax(2) * x).square().mean()


ALONG = ("convolution", "norm", "pool", "softmax", "attention")


def along(call: Call) -> list[Row] | None:
    rows = offered_rows(call)
    if rows is None or not any(name in call.name for name in ALONG):
        return rows
    return [row for row in rows if is_communicating(row.local)]


@pytest.fixture(scope="module")
def images():
    torch.manual_seed(0)
    model, x = Images(), torch.randn(2, 2, 10, 12)
    return model, x, sw.capture(model, (x,))


def planned_along(graph, mesh: str) -> Plan:
    """A random plan with all kinds of forms."""
    offers, wanted = Offers(graph, known=along), {"halo", "statistics", "parts"}
    plans = (random_plan(graph, mesh=mesh, seed=seed, offers=offers, replicated=0.0) for seed in range(400))
    return next(plan for plan in plans if {choice.local for choice in plan.choices.values()} >= wanted)


@pytest.mark.parametrize("mesh", ["sp=2", "sp=3", "sp=4", "dp=2,sp=2"])
def test_images_are_sharded_by_position(images, mesh):
    model, x, graph = images
    report = sw.verify(model, (x,), plan=planned_along(graph, mesh), only_plan=True)
    assert report.ok, report


@pytest.mark.parametrize("mesh", ["dp=2", "dp=3", "dp=4", "dp=2,sp=2", "dp=2,tp=1,sp=3"])
def test_batch_norm_has_the_statistics_of_all_ranks(images, mesh):
    """Of images or positions that are sharded along one axis, or along all; so are running statistics."""
    model, x, graph = images
    norms = [node.name for node in graph.nodes if "batch_norm" in node.op]
    offers = Offers(graph, known=along)
    plans = (random_plan(graph, mesh=mesh, seed=seed, offers=offers, replicated=0.0) for seed in range(400))
    axes = [axis for axis, size in enumerate(sw.Mesh.parse(mesh).shape) if size > 1]
    plan = next(plan for plan in plans if all(_talks(plan.choices[name], axes) for name in norms))
    report = sw.verify(model, (x,), plan=plan, only_plan=True)
    assert report.ok and len(norms) == 2, report


def _talks(choice: Choice, axes: list[int]) -> bool:
    """Whether its ranks communicate along these axes together."""
    return [axis for axis in choice.group_axes if choice.mesh.shape[axis] > 1] == axes


@pytest.mark.long
@pytest.mark.parametrize(("program", "kind"), [("images", "batch_norm"), ("captured", "attention")])
def test_ranks_of_two_axes_are_one_group_on_gloo(program, kind, request):
    """Batch norm of images sharded along one axis and their rows along another, and attention in one ring."""
    model, x, graph = request.getfixturevalue(program)
    names = [node.name for node in graph.nodes if kind in node.op]
    offers = Offers(graph, known=along)
    plans = (random_plan(graph, mesh="a=2,b=2", seed=s, offers=offers, replicated=0.0) for s in range(400))
    plan = next(plan for plan in plans if all(_talks(plan.choices[name], [0, 1]) for name in names))
    report = sw.verify(model, (x,), plan=plan, only_plan=True, backend="gloo")
    assert report.ok, report


def test_images_are_sharded_by_position_on_gloo(images):
    model, x, graph = images
    report = sw.verify(model, (x,), plan=planned_along(graph, "sp=4"), only_plan=True, backend="gloo")
    assert report.ok, report


class Words(nn.Module):
    """A word for every word, by a layer whose logits are never whole."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return sw.linear_cross_entropy(self.embed(ids), self.head.weight, ids, ignore_index=3)


@pytest.fixture(scope="module")
def words():
    torch.manual_seed(0)
    model, ids = Words(), torch.arange(21).view(3, 7) * 11 % 50
    return model, ids, sw.capture(model, (ids,))


def planned_by_classes(graph, mesh: str) -> Plan:
    offers = Offers(graph)
    plans = (random_plan(graph, mesh=mesh, seed=seed, offers=offers, replicated=0.0) for seed in range(400))
    return next(plan for plan in plans if plan.choices["linear_cross_entropy"].local == "classes")


@pytest.mark.parametrize("mesh", ["tp=2", "tp=3", "tp=4", "dp=2,tp=2"])
def test_classes_are_sharded_on_any_mesh(words, mesh):
    model, ids, graph = words
    report = sw.verify(model, (ids,), plan=planned_by_classes(graph, mesh), only_plan=True)
    assert report.ok, report


def test_classes_are_sharded_on_gloo(words):
    model, ids, graph = words
    report = sw.verify(model, (ids,), plan=planned_by_classes(graph, "tp=4"), only_plan=True, backend="gloo")
    assert report.ok, report


class Layers(nn.Module):
    """Two layers with a shortcut, of a batch of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.down(F.silu(self.up(x)))).square().mean()


@pytest.fixture(scope="module")
def layers():
    torch.manual_seed(0)
    model, x = Layers(), torch.randn(3, 9, 6, requires_grad=True)
    return model, x, sw.capture(model, (x,), split_products=True)


def planned_split(graph, mesh: str) -> Plan:
    """A random plan whose layers are split, forward and backward, one that gathers and one that scatters."""
    offers = Offers(graph)

    def is_wanted(plan: Plan) -> bool:
        rows = [row for choice in plan.choices.values() for row in choice.rows if row.local == "split"]
        return {"S(2)", "S(1)", "S(0)"} <= {str(row.outputs[0]) for row in rows} and len(rows) > 2

    plans = (random_plan(graph, mesh=mesh, seed=seed, offers=offers, replicated=0.0) for seed in range(4000))
    return next(filter(is_wanted, plans))


@pytest.mark.parametrize("mesh", ["tp=2", "tp=3", "tp=4", "dp=2,tp=2", "tp=2,dp=2"])
def test_products_are_split_on_any_mesh(layers, mesh):
    model, x, graph = layers
    report = sw.verify(model, (x,), plan=planned_split(graph, mesh), only_plan=True)
    assert report.ok, report


def test_a_product_is_split_among_ranks_some_of_which_have_no_rows():
    """Of four images two belong to each of two groups of ranks, and then to the first two of four ranks."""
    model, x = nn.Linear(6, 8, bias=False), torch.randn(4, 3, 6)
    graph = sw.capture(model, (x,), training=False, split_products=True)
    offers = Offers(graph)

    def is_wanted(plan: Plan) -> bool:
        by_groups, split = plan.choices["linear"].rows
        return split.local == "split" and str(split.inputs[0]) == str(by_groups.inputs[0]) == "S(0)"

    plans = (random_plan(graph, mesh="dp=2,tp=4", seed=seed, offers=offers) for seed in range(1000))
    plan = next(filter(is_wanted, plans))
    report = sw.verify(model, (x,), plan=plan, only_plan=True)
    assert report.ok and plan.cost.seconds > 0, report


def test_products_are_split_on_gloo(layers):
    model, x, graph = layers
    report = sw.verify(model, (x,), plan=planned_split(graph, "tp=4"), only_plan=True, backend="gloo")
    assert report.ok, report
