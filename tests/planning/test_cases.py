"""Behaviour that planning must show: cases 13-19, 27 and 28, and those where parallelism pays or does not."""

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import capture
from shardwise.mesh import Cluster, Level, Link
from shardwise.planning import Compute, Planner
from shardwise.planning._pins import Pins
from shardwise.planning._planner import GAP


def on_meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def infer(function, *args, **options):
    return sw.plan(function, args, training=False, **options)


def collectives(plan):
    return [step.kind for move in plan.schedule.moves for step in move.change.collectives]


def test_13_a_large_matmul_is_split_without_communication():
    plan = infer(torch.matmul, on_meta(1024, 1024), on_meta(1024, 1024), mesh="d=4")
    assert str(plan.choices["mm"].rows[0]) in ("S(0), R -> S(0)", "R, S(1) -> S(1)")
    assert collectives(plan) == []


def test_14_a_split_that_leaves_a_rank_idle_is_not_chosen():
    plan = infer(torch.matmul, on_meta(3, 4096), on_meta(4096, 1024), mesh="d=4")
    assert str(plan.choices["mm"].rows[0]) == "R, S(1) -> S(1)"


@pytest.mark.parametrize("layout", ["S(0)", "S(1)", "R"])
def test_15_a_matmul_follows_the_pin_of_its_result(layout):
    def program(a, b, c):
        return a @ b + c

    plan = infer(
        program,
        on_meta(1024, 1024),
        on_meta(1024, 1024),
        on_meta(1024, 1024),
        mesh="d=4",
        pin={"output": layout},
    )
    assert str(plan.outputs[0]) == layout
    if layout != "R":
        assert str(plan.choices["mm"].output_layouts[0]) == layout
        assert collectives(plan) == []


def test_17_pins_survive(make_mlp):
    model, args = make_mlp(64, 256, 512)
    pins = {"up.weight": "S(1), R", "down.weight": {"tp": "S(0)"}, "x": "R, S(0)", "relu": "R, S(1)"}
    plan = sw.plan(model, args, mesh="dp=2,tp=2", pin=pins)
    by_target = {i.target: str(plan.inputs[i.name]) for i in plan.graph.inputs if i.role != "tangent"}
    assert by_target["up.weight"] == "S(1), R"
    assert by_target["down.weight"].endswith("S(0)")
    assert by_target["x"] == "R, S(0)"
    assert str(plan.choices["relu"].output_layouts[0]) == "R, S(1)"


def test_18_both_axes_are_used_when_both_pay():
    plan = infer(torch.matmul, on_meta(4096, 4096), on_meta(4096, 4096), mesh="a=2,b=4")
    assert all(not row.is_replicated for row in plan.choices["mm"].rows)
    assert collectives(plan) == []


def diamond(x):
    return torch.relu(x + 1) * (x * 2)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return x + self.linear(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


class Block(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (p(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.last(x))))


SHAPES = {
    "diamond": (diamond, lambda: (torch.rand(8, 6, requires_grad=True),)),
    "residual": (Residual(), lambda: (torch.rand(8, 64),)),
    "tied": (Tied(), lambda: (torch.randint(0, 32, (4, 8)),)),
    "attention": (nn.MultiheadAttention(16, 4, batch_first=True), lambda: (torch.rand(4, 8, 16),) * 3),
    "block": (Block(), lambda: (torch.rand(4, 16, 64),)),
    "uneven": (nn.Linear(10, 18), lambda: (torch.rand(1, 10),)),
}


@pytest.mark.parametrize("mesh", ["d=4", "dp=2,tp=2"])
@pytest.mark.parametrize("name", SHAPES)
def test_16_and_19_every_node_gets_a_choice_and_no_baseline_is_cheaper(name, mesh):
    """The search finds it: it has not been handed the baselines to take the best of."""
    model, args = SHAPES[name]
    planner = Planner(capture(model, args()), sw.Mesh.parse(mesh), sw.Cluster.of("h100"))
    plan = planner.plan({}, compare=False)
    assert set(plan.choices) == {node.name for node in plan.graph.nodes}
    called = [entry.node.name for entry in plan.schedule.entries if isinstance(entry, Compute)]
    assert sorted(called) == sorted(plan.choices)
    tried = planner.baselines(Pins(planner.mesh))
    assert list(tried) == ["data parallel", "FSDP", "tensor parallel", *["FSDP x TP"] * (mesh != "d=4")]
    for baseline in tried.values():
        assert 0 < plan.cost.seconds <= baseline.cost.seconds * (1 + GAP)
    assert plan.bound <= plan.cost.seconds * (1 + 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_27_a_result_takes_its_share_of_memory(dtype):
    plan = infer(
        torch.matmul,
        on_meta(32, 64, dtype=dtype),
        on_meta(64, 128, dtype=dtype),
        mesh="d=4",
        pin={"args.0": "R", "args.1": "S(1)", "mm": "S(1)"},
    )
    inputs = (32 * 64 + 64 * 32) * dtype.itemsize
    assert plan.cost.peak - inputs == 32 * 128 * dtype.itemsize // 4


def test_28_one_gather_serves_all_its_users(make_mlp):
    """q, k and v use the same tensor: bringing it into their layout is priced and done once."""

    def program(x, q, k, v):
        h = x * 2
        return h @ q, h @ k, h @ v

    weight = on_meta(512, 512)
    sharded = {"x": "S(0)", "mul": "S(0)", **dict.fromkeys(("q", "k", "v", "0", "1", "2"), "S(1)")}
    plan = infer(program, on_meta(4096, 512), weight, weight, weight, mesh="d=4", pin=sharded)
    assert collectives(plan) == ["all_gather"]


# -- regimes


def cluster_with(bandwidth):
    fast = Cluster.preset("h100")
    return Cluster("test", fast.device, (Level(Link(bandwidth, latency=1e-7, launch=1e-7)),))


def test_an_mlp_is_split_by_its_hidden_dim_when_the_batch_is_small_and_weights_are_large(make_mlp):
    model, args = make_mlp(256, 4096, 16384)
    plan = sw.plan(
        model, args, mesh="tp=4", cluster=cluster_with(100e9), optimizer="none", pin={"x": "R", "output": "R"}
    )
    forward = [n.name for n in plan.graph.nodes if n.op == "aten.mm.default" and n.phase == "forward"]
    assert [str(plan.choices[name].rows[0]) for name in forward] == [
        "R, S(1) -> S(1)",
        "S(1), S(0) -> P(sum)",
    ]
    # One reduction forward, and one backward for the gradient of the input.
    assert collectives(plan) == ["all_reduce", "all_reduce"]


def reductions(plan, phase, axis):
    """How often a sum is completed along an axis for what a phase goes on with: a gradient of a parameter, which is
    summed once in a step, is not counted."""
    after = {n.name for n in plan.graph.nodes if n.phase == phase}
    return sum(
        step.kind in ("all_reduce", "reduce_scatter") and plan.mesh.names.index(axis) in step.axes
        for move in plan.schedule.moves
        for step in move.change.collectives
        if move.source.ref.name in after and not move.target.copy.startswith("out")
    )


@pytest.mark.parametrize("name", ["mlp", "block"])
def test_on_two_axes_a_block_completes_one_sum_each_way_as_megatron_does(name, make_mlp):
    """Attention and the MLP are one block each: columns first, then rows, and a single reduction along tp."""
    with torch.device("meta"):
        model = Block(2048, 16) if name == "block" else make_mlp(1, 2048, 8192)[0]
        x = torch.empty(4, 512, 2048, requires_grad=True)
    pins = {"x": "S(0), R", "output": "S(0), R"}
    plan = sw.plan(model, (x,), mesh="dp=2,tp=4", cluster=cluster_with(400e9), optimizer="none", pin=pins)
    blocks = 2 if name == "block" else 1
    assert [reductions(plan, phase, "tp") for phase in ("forward", "backward")] == [blocks, blocks]
    assert plan.cost.seconds <= plan.baselines["tensor parallel"].seconds


def test_an_mlp_is_data_parallel_when_the_batch_is_large_and_weights_are_small(make_mlp):
    model, args = make_mlp(2**20, 256, 256)
    plan = sw.plan(model, args, mesh="dp=4", cluster=cluster_with(100e9), optimizer="none")
    forward = [n.name for n in plan.graph.nodes if n.op == "aten.mm.default" and n.phase == "forward"]
    assert [str(plan.choices[name].rows[0]) for name in forward] == ["S(0), R -> S(0)", "S(0), R -> S(0)"]
    # The gradient of each weight is completed, and nothing else is sent.
    assert set(collectives(plan)) <= {"all_reduce", "reduce_scatter", "all_gather"}
    completed = [kind for kind in collectives(plan) if kind != "all_gather"]
    assert len(completed) == len(plan.graph.with_role("parameter"))


def test_slow_links_leave_a_small_model_alone(make_mlp):
    model, args = make_mlp(64, 256, 256)
    plan = sw.plan(model, args, mesh="d=4", cluster=cluster_with(1e6), pin={"x": "R", "output": "R"})
    assert collectives(plan) == []
