"""Behaviour that a sharding system must have, run: partials, operators, whole programs."""

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise.graph import capture
from shardwise.placements import is_partial
from shardwise.planning import Compute, Move, random_plan
from shardwise.running import simulate
from shardwise.verification import verify


def run(function, args, in_specs, out_spec="R", mesh="d=4", auto=False):
    """The function sharded so, checked against itself; and the plan it ran by."""
    mapped = sw.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_spec, auto=auto)
    found, expected = mapped(*args), function(*args)
    for some, other in zip(_leaves(found), _leaves(expected), strict=True):
        torch.testing.assert_close(some, other, rtol=1e-4, atol=1e-5)
    return mapped.plan_for(*args)


def _leaves(result):
    return result if isinstance(result, tuple | list) else [result]


def collectives(plan):
    return [step.kind for move in plan.schedule.moves for step in move.change.collectives]


def given(plan, op):
    """The placements that the calls of an operator are given."""
    return [
        placement
        for entry in plan.schedule.entries
        if isinstance(entry, Compute) and entry.node.op.startswith(f"aten.{op}.")
        for layout in entry.choice.input_layouts
        for placement in layout.placements
    ]


def reductions(plan):
    return [kind for kind in collectives(plan) if kind in ("all_reduce", "reduce_scatter")]


# -- 37 to 44: partials. K is sharded: what the product leaves on each rank is one summand.

A, B = torch.randn(64, 64), torch.randn(64, 64)
K = ["S(1)", "S(0)"]


@pytest.mark.parametrize(
    ("after", "op"),
    [
        (torch.exp, "exp"),
        (lambda x: x**3, "pow"),
        (torch.relu, "relu"),
        (lambda x: x.softmax(-1), "_softmax"),
        (torch.sigmoid, "sigmoid"),
    ],
)
def test_37_sums_are_done_before_what_is_not_linear(after, op):
    plan = run(lambda a, b: after(a @ b), (0.1 * A, 0.1 * B), K)
    assert given(plan, op) and not any(is_partial(p) for p in given(plan, op))


def test_38_a_factor_leaves_a_sum_undone():
    """Of one product the sum may as well come before the factor; with another beside it, one sum serves both if it
    comes last."""
    plan = run(lambda a, b: (a @ b) * 0.5, (A, B), K)
    assert len(reductions(plan)) == 1
    plan = run(lambda a, b, c: (a @ b) * 0.5 + a @ c, (A, B, B + 1), [*K, "S(0)"])
    assert len(reductions(plan)) == 1
    assert given(plan, "mul") and all(is_partial(p) for p in given(plan, "mul"))


def test_39_two_sums_are_done_as_one():
    plan = run(lambda a, b, c: a @ b + a @ c, (A, B, B + 1), [*K, "S(0)"])
    assert len(reductions(plan)) == 1
    assert all(is_partial(p) for p in given(plan, "add"))


@pytest.mark.parametrize("bias_first", [False, True])
def test_40_a_bias_counts_once(bias_first):
    bias = torch.full((64,), 100.0)
    run(
        lambda a, b, c: c + a @ b if bias_first else a @ b + c,
        (A, B, bias),
        [*K, "R"],
    )
    plan = run(torch.addmm, (bias, A, B), ["R", *K])
    assert reductions(plan)


@pytest.mark.parametrize(
    "together",
    [
        lambda p, q: torch.cat([p, q], 1),
        lambda p, q: torch.stack([p, q]),
        lambda p, q: p[:, :16] + q[:, 16:32],
        lambda p, q: p.index_select(0, torch.tensor([3, 1])) - q.index_select(0, torch.tensor([0, 9])),
    ],
)
def test_41_pieces_of_sums_stay_sums(together):
    plan = run(lambda a, b, c: together(a @ b, a @ c), (A, B, B + 1), [*K, "S(0)"])
    assert len(reductions(plan)) == 1


def test_42_a_sum_beside_a_whole_tensor():
    run(lambda a, b, c: torch.cat([a @ b, c], 1), (A, B, B + 1), [*K, "R"])


def test_43_rounding_comes_after_the_sum():
    """2049 is no float16: rounded before it is added to 1 it gives 2049, after it 2050."""
    a = torch.zeros(4, 8)
    a[:, 0], a[:, 7] = 2049.0, 1.0
    b = torch.ones(8, 4)
    mapped = sw.shard_map(lambda a, b: (a @ b).half(), mesh="d=4", in_specs=K, out_specs="R")
    assert torch.equal(mapped(a, b), torch.full((4, 4), 2050.0, dtype=torch.float16))
    assert not any(is_partial(p) for p in given(mapped.plan_for(a, b), "_to_copy"))


def test_44_column_then_row_is_one_all_reduce():
    plan = run(lambda x, a, b: (x @ a).relu() @ b, (A[:8], A, B), ["R", "S(1)", "S(0)"])
    assert collectives(plan) == ["all_reduce"]


# -- 45 to 53: operators, with every dim of every input sharded in turn

TALL, ROW, BATCH = torch.randn(8, 16), torch.randn(16), torch.randn(4, 8, 12)
IMAGE = torch.randn(4, 6, 8, 8)
TOKENS = torch.randint(0, 10, (4, 8))
OPERATORS = {
    "45 add": (lambda x, y: (x + y, y + x), (TALL, TALL * 2)),
    "45 broadcast": (lambda x, y: x + y, (TALL, ROW)),
    "46 sum": (lambda x: (x.sum(1), x.sum(-1, keepdim=True), x.sum((0, 2))), (BATCH,)),
    "46 mean": (lambda x: (x.mean(1), x.mean((-1, 0))), (BATCH,)),
    "46 max min prod": (lambda x: (x.amax(1), x.amin(-2), (x / 4).prod(1), x.max(2).values), (BATCH,)),
    "47 argmax": (lambda x: (x.argmax(1), x.argmax()), (BATCH,)),
    "47 cumsum sort": (lambda x: (x.cumsum(1), x.sort(1).values), (BATCH,)),
    "47 triu flip roll": (lambda x: (x.triu(1), x.flip(1), x.roll(3, 1)), (BATCH,)),
    "47 cat": (lambda x, y: (torch.cat([x, y], 0), torch.cat([y, x, y], 1)), (TALL, TALL * 2)),
    "48 merge": (lambda x: x.reshape(32, 12), (BATCH,)),
    "48 split": (lambda x: x.reshape(4, 4, 2, 12), (BATCH,)),
    "48 split minor": (lambda x: x.reshape(4, 8, 3, 4), (BATCH,)),
    "49 split": (lambda x: (*x.split(3, 1), *x.chunk(2, 2)), (BATCH,)),
    "49 unbind": (lambda x: x.unbind(0), (BATCH,)),
    "50 unsqueeze": (lambda x: (x.unsqueeze(0), x.unsqueeze(2), x.unsqueeze(-1)), (BATCH,)),
    "51 gather": (lambda x, i: x.gather(1, i), (TALL[:4], TOKENS)),
    "51 scatter": (lambda x, i: torch.zeros(4, 16).scatter_add(1, i, x), (TALL[:4, :8], TOKENS)),
    "52 conv": (lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, torch.randn(8, 6, 3, 3))),
    "53 softmax": (lambda x: x.softmax(1), (BATCH,)),
    "53 layer norm": (lambda x, w: F.layer_norm(x, (12,), w), (BATCH, ROW[:12])),
    "53 embedding": (lambda i, w: F.embedding(i, w), (TOKENS, torch.randn(10, 6))),
    "53 attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (IMAGE,)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_45_to_53_operators_on_every_sharding_of_their_inputs(name):
    function, args = OPERATORS[name]
    for number, arg in enumerate(args):
        for dim in (d for d, size in enumerate(arg.shape) if size >= 4):
            specs = ["R"] * len(args)
            specs[number] = f"S({dim})"
            run(function, args, specs, None)


def test_45_different_axes_on_the_same_dim():
    run(lambda x, y: x * y, (TALL, TALL + 1), ["S(0), R", "R, S(0)"], "R, R", "a=2,b=2")
    run(lambda x, y: x + y, (TALL, TALL + 1), ["S(0), S(0)", "S(1), S(0)"], "R, S(1)", "a=2,b=2")


@pytest.mark.parametrize("mesh", ["d=3", "a=2,b=2"])
def test_49_uneven_pieces(mesh):
    specs = "S(1)" if mesh == "d=3" else "S(1), S(2)"
    x = torch.randn(5, 7, 9)
    out = None
    run(
        lambda x: (*x.split([2, 5], 1), x.sum(1), x.flip(1), x.cumsum(2), x.reshape(35, 9)),
        (x,),
        [specs],
        out,
        mesh,
    )


def test_52_every_way_to_shard_a_convolution():
    image, weight = IMAGE, torch.randn(8, 6, 3, 3)
    for specs in (["S(0)", "R"], ["S(1)", "S(1)"], ["R", "S(0)"], ["S(2)", "R"], ["S(3)", "R"]):
        run(lambda x, w: F.conv2d(x, w, padding=1), (image, weight), specs)


# -- 54 to 57: whole programs


class Block(torch.nn.Module):
    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads = heads
        self.embed = torch.nn.Embedding(19, width)
        self.norm = torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(x)))
        return F.cross_entropy((x @ self.embed.weight.T).flatten(0, 1), tokens.roll(-1, 1).flatten())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_54_56_57_training_steps_agree_in_numbers_collectives_and_memory(dtype):
    torch.manual_seed(0)
    model, args = Block().to(dtype), (torch.randint(0, 19, (4, 8)),)
    graph = capture(model, args)
    report = verify(model, args, plan=random_plan(graph, mesh="dp=2,tp=2"), steps=2, only_plan=True)
    assert report.same_numbers, str(report)
    assert report.collectives == report.priced and len(report.priced) > 50
    assert 0.9 * report.predicted_peak <= report.peak <= 1.05 * report.predicted_peak


def test_55_draws_are_right_and_differ_between_shards_but_not_between_replicas():
    x = torch.ones(4000, 8)
    mapped = sw.shard_map(
        lambda x: F.dropout(x, 0.3), mesh="a=2,b=2", in_specs=["S(0), R"], out_specs="S(0), R"
    )
    ran = simulate(mapped.function, (x,), plan=mapped.plan_for(x), seed=5)
    first, replica, second, _ = ran.outputs["output"].locals
    assert torch.equal(first, replica)
    assert (first != second).float().mean() > 0.3
    kept = ran.outputs["output"].whole()
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    share = (kept != 0).float()
    assert share.mean().item() == pytest.approx(0.7, abs=0.01)
    assert share.mean(0).sub(0.7).abs().max() < 0.04  # no dim and no neighbour gives a draw away
    assert abs(torch.corrcoef(torch.stack([share[:-1, 0], share[1:, 0]]))[0, 1]) < 0.06
    assert abs(torch.corrcoef(torch.stack([share[:, 0], share[:, 1]]))[0, 1]) < 0.06


def test_a_mapped_function_is_differentiated_in_one_process_too():
    def function(a, options, scale=1.0):
        product = a @ options["b"]
        return product * scale, product.detach().argmax(1)

    torch.manual_seed(0)
    a = torch.randn(4, 6)
    b, twin = (
        torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2)
    )
    mapped = sw.shard_map(function, mesh="d=2", in_specs=["S(1)", "S(0)"], out_specs=["R", "R"])
    result, places = mapped(a, {"b": b}, scale=3.0)
    result.square().sum().backward()
    expected, expected_places = function(a, {"b": twin}, scale=3.0)
    expected.square().sum().backward()
    assert torch.allclose(b.grad, twin.grad, rtol=1e-5)
    assert torch.equal(places, expected_places) and not places.requires_grad
    with torch.no_grad():
        assert not mapped(a, {"b": b}, scale=3.0)[0].requires_grad


def test_an_argument_and_a_result_of_one_name_have_each_their_own_layout():
    def double(output):
        return output * 2

    mapped = sw.shard_map(double, mesh="d=4", in_specs=["S(1)"], out_specs="S(0)")
    plan = mapped.plan_for(torch.rand(8, 8))
    assert ([str(layout) for layout in plan.inputs.values()], str(plan.outputs[0])) == (["S(1)"], "S(0)")


def test_a_move_stands_before_its_user():
    """The schedule is what runs: nothing is used before it is made, and nothing after it is dead."""
    torch.manual_seed(0)
    graph = capture(Block(), (torch.randint(0, 19, (4, 8)),))
    schedule = random_plan(graph, mesh="dp=2,tp=2", seed=0).schedule
    made = {value for value in schedule.layouts if value.ref.name in {entry.name for entry in graph.inputs}}
    made = {value for value in made if not value.copy}
    dead = set()
    for entry in schedule.entries:
        assert isinstance(entry, Compute | Move)
        assert made.issuperset(entry.used) and dead.isdisjoint(entry.used)
        made.update(entry.made)
        dead.update(entry.dead)


def test_heads_that_two_axes_cut_meet_the_keys_that_serve_them():
    """The first axis may not cut query heads through groups of which the second takes the keys apart."""

    def grouped(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    q, k, v = (torch.randn(1, heads, 4, 8, requires_grad=True) for heads in (4, 2, 2))
    pins = {"q": "S(1), S(1)", "k": "R, S(1)", "v": "R, S(1)", "output": "S(1), S(1)"}
    plan = sw.plan(grouped, (q, k, v), mesh="dp=2,tp=2", cluster="laptop", compare=False, pin=pins)
    report = verify(grouped, (q, k, v), plan=plan, only_plan=True)
    assert report.ok, str(report)
