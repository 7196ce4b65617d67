"""Propagation through captured functions and models."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise.errors import UsageError
from shardwise.graph import Ref, capture
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.modules import module_of
from shardwise.placements import is_replicate
from shardwise.propagation import Program, local_run
from shardwise.rules import book_rows

MESH = "dp=2,tp=2"
EXAMPLES = Path(__file__).parents[2] / "examples"


class Block(nn.Module):
    """Attention with separate projections, and a gated MLP."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=i == 0) for i in range(4))
        self.gate, self.up, self.down = nn.Linear(width, 32), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x):
        batch, positions, _ = x.shape
        q, k, v = (
            project(self.norm(x)).view(batch, positions, self.heads, -1).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(x.shape))
        return (x + self.down(F.silu(self.gate(x)) * self.up(x))).square().mean()


@pytest.fixture(scope="module")
def graph():
    return capture(Block(), (torch.randn(4, 6, 16),))


GIVEN = {"x": "[{dp}, {}, {}]", "q.weight": "[{tp}, {}]", "up.weight": "[{tp}, {}]"}


def test_three_annotations_give_a_block_the_layout_of_megatron(graph):
    outcome = sw.propagate(graph, mesh=MESH, shardings=GIVEN)
    found = {name: str(outcome[f"{name}.weight"]) for name in ("q", "k", "v", "o", "gate", "up", "down")}
    assert found == {
        **dict.fromkeys(("q", "up"), "[{tp}, {}]"),
        **dict.fromkeys(("k", "v", "gate"), "[{tp, ?}, {?}]"),
        **dict.fromkeys(("o", "down"), "[{?}, {tp, ?}]"),
    }
    assert [str(outcome[name]) for name in ("q.bias", "norm.weight", "output")] == [
        "[{tp, ?}]",
        "[{?}]",
        "[]",
    ]
    assert outcome.complete


def test_gradients_share_the_shardings_of_their_parameters(graph):
    outcome = sw.propagate(graph, mesh=MESH, shardings=GIVEN)
    parameters = [entry.target for entry in graph.with_role("parameter")]
    assert len(parameters) == 13
    for name in parameters:
        assert outcome[f"grad({name})"] == outcome[name]
    for position, output in enumerate(graph.outputs):
        if output.role == "gradient" and output.target == "k.weight":
            assert outcome.output(position) == outcome["k.weight"]


def test_a_model_may_be_given_as_it_is():
    outcome = sw.propagate(
        nn.Linear(8, 6, bias=False), (torch.rand(4, 8),), mesh=MESH, shardings={"weight": "[{tp}, {}]"}
    )
    assert str(outcome["mm"]) == str(outcome.sharding(Ref("mm"))) == "[{?}, {tp, ?}]"
    forward = sw.propagate(torch.mm, (torch.rand(4, 8), torch.rand(8, 2)), mesh=MESH, training=False)
    assert all(sharding.is_unknown for sharding in forward.shardings.values())


def test_it_is_drawn_on_the_graph(graph):
    outcome = sw.propagate(graph, mesh=MESH, shardings=GIVEN, debug=True)
    drawn = outcome.table("o").splitlines()
    assert drawn[:3] == [
        "t_3 = aten.t.default: j i -> i j (forward in o)",
        "     o.weight  [{?}, {tp, ?}]",
        "  -> t_3       [{tp, ?}, {?}]",
    ]
    listed = {line.split()[0]: line.partition("]")[2].strip() for line in str(outcome).splitlines()}
    assert listed["k.weight"] == "[{tp, ?}, {?}]"
    assert repr(outcome).startswith("<Propagation user-priority: ")
    assert "t_3 dim 0: {} -> {tp}" in str(outcome.trace)
    assert "[tp]" in outcome.picture("t_3")


def test_priorities_and_open_dims_are_those_of_the_sharding_language():
    first, second = {"a": "[{dp}p1, {?}]", "b": "[{?}, {dp}]"}, {"a": "[{dp}, {?}]", "b": "[{?}, {dp}p1]"}
    args = (torch.rand(4, 8), torch.rand(8, 6))

    def program(a, b):
        return a @ b

    made = [
        sw.propagate(program, args, mesh="dp=2", shardings=g, training=False)["mm"] for g in (first, second)
    ]
    assert list(map(str, made)) == ["[{?}, {dp, ?}]", "[{dp, ?}, {?}]"]


def test_a_fused_projection_is_sharded_through_its_split():
    class Fused(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.down = nn.Linear(8, 24, bias=False), nn.Linear(12, 8, bias=False)

        def forward(self, x):
            gate, up = self.both(x).chunk(2, -1)
            return self.down(F.silu(gate) * up)

    outcome = sw.propagate(Fused(), (torch.rand(4, 8),), mesh=MESH, shardings={"both.weight": "[{tp}, {}]"})
    assert str(outcome["down.weight"]) == "[{?}, {tp, ?}]"


def test_zeros_made_like_another_tensor_do_not_follow_it_in_other_dims():
    def program(x):
        return x.new_zeros(8, 4) + 1

    outcome = sw.propagate(
        program, (torch.rand(16, 8),), mesh=MESH, shardings={"x": "[{dp}, {tp}]"}, training=False
    )
    assert outcome["new_zeros"].is_unknown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": "[{dp}, {}]"}, "'y' in shardings matches no parameter, input, output or node of"),
        ({"input": "[{dp}]"}, r"of 'input' has 1 dims, but input has shape \(4, 8\)"),
        ({"input": "{dp}"}, "the sharding of 'input': '{dp}' is not a sharding"),
        ({"input": 3}, "the sharding of 'input' is 3: give text"),
        (
            {"input": "[{dp}, {}]", "inp*": "[{}, {dp}]"},
            "input is given shardings that contradict each other",
        ),
        ({"weight": "[{ep}, {}]"}, "ep"),
    ],
)
def test_annotations_that_cannot_be_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        sw.propagate(nn.Linear(8, 6), (torch.rand(4, 8),), mesh=MESH, shardings=given)


def test_a_mesh_is_needed_and_a_program_has_its_own():
    with pytest.raises(UsageError, match="propagate needs a mesh"):
        sw.propagate(nn.Linear(8, 6), (torch.rand(4, 8),))
    with pytest.raises(UsageError, match="a Program has its mesh"):
        sw.propagate(Program(MESH), mesh=MESH)


# -- the factors of captured calls, and the rows that they are derived from

QUICK = [
    "attention",
    "convolution",
    "batch_norm",
    "mixture_of_experts",
    "rotary",
    "statistics",
    "tied_weights",
]


def names(file):
    return sorted(module_of(EXAMPLES / file).ZOO)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        pytest.param(file, name, marks=() if name in QUICK else pytest.mark.long)
        for file in ("zoo.py", "models.py")
        for name in names(file)
    ],
)
def test_factors_agree_with_rows_on_every_call_of_the_zoo(file, name):
    """They claim the same rows, and what runs on local shards by the factors of a call is one of its rows."""
    model, args, kwargs = module_of(EXAMPLES / file).ZOO[name]()
    graph = capture(model, args, kwargs)
    compared = 0
    for call, rule in {graph.call(n).signature: (graph.call(n), graph.rule(n)) for n in graph.nodes}.values():
        rows = book_rows(call)
        if rows is None:
            assert rule is None
            continue
        assert rule.rows() == rows
        for row in rows if call.tensors else ():
            compared += 1
            found = _run_by_factors(rule, row, call)
            assert found in {(r.inputs, r.outputs) for r in rows} or _replicated(found), f"{call}: {row}"
    assert compared > 20


def _run_by_factors(rule, row, call):
    """The placements with which a call runs on one axis, given inputs placed as a row says."""
    mesh = Mesh.parse("a=2")
    given = [
        sw.Sharding.from_layout(Layout(mesh, (placement,)), len(shape))
        for placement, shape in zip(row.inputs, call.shapes, strict=True)
    ]
    ran = local_run(rule, given)
    made = iter(ran.outputs)
    outputs = [None if shape is None else next(made).to_placements()[0] for shape in call.outputs]
    return tuple(s.to_placements()[0] for s in ran.inputs), tuple(outputs)


def _replicated(found):
    return all(p is None or is_replicate(p) for side in found for p in side)
