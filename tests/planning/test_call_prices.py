"""Prices of calls by their forms: what a form runs, and the collectives inside of it."""

import math

import pytest
import torch

import shardwise as sw
from shardwise.calls import Call, facts
from shardwise.expansion import Choice
from shardwise.forms import communicating
from shardwise.mesh import Cluster, Device, Level, Link, Mesh
from shardwise.placements import Row
from shardwise.planning import collectives_inside, form_price
from shardwise.rules import own_rules, row_of, rows_besides
from tests.forms.cases import NORMS, call_of

MESH = Mesh.parse("cp=4")
H100 = Cluster.preset("h100")
RING = "S(2), S(2), S(2) -> S(2), S(2) with local ring"
BALANCED = "S(2), S(2), S(2) -> S(2), S(2) with local balanced"
CAUSAL = "S(2), R, R -> S(2), S(2) with local causal"


def attention(causal: bool = True, positions: int = 1 << 18) -> Call:
    heads = torch.empty(1, 8, positions, 128, dtype=torch.bfloat16, device="meta")
    return Call.of(torch.ops.shardwise.attention.default, heads, heads, heads, None, None, causal, 0.1, 0.0)


def priced(call: Call, row: str, cluster: Cluster = H100):
    return form_price(call, Choice(MESH, (Row.parse(row),)), cluster)


def test_what_the_last_rank_has_to_do_counts():
    whole = attention(causal=False)
    everything = form_price(
        whole, Choice(MESH, (Row.parse("S(2), R, R -> S(2), S(2) with local causal"),)), H100
    )
    last = priced(attention(), CAUSAL)  # three blocks of keys whole, and a fourth half
    assert 0.8 < last.seconds / everything.seconds < 1.0


def test_balanced_ranks_share_causal_work():
    unbalanced, balanced = priced(attention(), RING), priced(attention(), BALANCED)
    assert 0.5 < balanced.seconds / unbalanced.seconds < 0.75
    assert balanced.sent > unbalanced.sent  # halves are exchanged
    ring = [kind for kind, _, _ in unbalanced.collectives]
    assert ring == ["permute"] * 3
    piece = 8 * (1 << 16) * 128 * 2
    assert unbalanced.sent == 3 * 2 * piece


def test_what_runs_beside_a_collective_hides_it():
    slow = Cluster("slow", H100.device, (Level(Link(bandwidth=1e9)),))
    fast, waits = priced(attention(), RING), priced(attention(), RING, slow)
    assert fast.seconds == pytest.approx(fast.compute) and not sum(fast.exposed.values())
    sending = sum(seconds for _, _, seconds in waits.collectives)
    assert sending < waits.seconds < sending + waits.compute
    assert sum(waits.exposed.values()) == pytest.approx(waits.seconds - waits.compute)


@pytest.mark.parametrize("latency", [1e-6, 1.0])
def test_a_call_and_a_collective_beside_each_other_take_longer(latency):
    """Both by the same share of the time that they would run beside each other."""

    def rows(call):
        yield row_of(call, {}, [])

    with own_rules():

        @communicating("aten.cumsum.default", rows=rows)
        def beside(call, group):
            moving = group.all_reduce(call["self"])
            made = call()
            yield moving
            return made

        @communicating("aten.cumsum.default", rows=rows)
        def one_after_another(call, group):
            made = call()
            yield group.all_reduce(call["self"])
            return made

        device = Device("d", {"float32": 1e12}, memory=1e9, memory_bandwidth=1e12)
        cluster = Cluster("c", device, (Level(Link(bandwidth=1e12, latency=latency)),))
        call = Call.of(torch.ops.aten.cumsum.default, torch.empty(1000, 4000, device="meta"), 1)
        found, calls = (
            priced(call, f"R -> R with local {form}", cluster) for form in ("beside", "one_after_another")
        )
    ((_, _, collective),) = found.collectives
    shared = 0.14 * min(calls.compute, collective)
    assert found.compute == pytest.approx(calls.compute + shared)
    assert found.seconds == pytest.approx(max(calls.compute, collective) + shared)


def test_scratch_is_what_is_allocated_at_once():
    device = Device("d", {"float32": 1e12}, memory=1e9, memory_bandwidth=1e12)
    cluster = Cluster("c", device, (Level(Link(bandwidth=1e9)),))

    def rows(call):
        yield row_of(call, {}, [])

    with own_rules():

        @communicating("aten.cumsum.default", rows=rows)
        def twice(call, group):
            one = call["self"] * 2
            two = one + 1
            del one
            views = [two.view(-1) for _ in range(3)]
            total = yield group.all_reduce(views[0])
            return total.view(two.shape)

        call = Call.of(torch.ops.aten.cumsum.default, torch.empty(4, 1000, device="meta"), 1)
        choice = Choice(MESH, (Row.parse("S(1) -> S(1) with local twice"),))
        piece = 4 * 250 * 4
        assert form_price(call, choice, cluster).scratch == piece  # beside the result, which arrives


def test_a_plan_of_a_long_sequence_is_a_balanced_ring():
    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    heads = torch.empty(1, 1, 1 << 18, 64, dtype=torch.bfloat16, device="meta")
    plan = sw.plan(attend, (heads,) * 3, mesh="cp=4", training=False, pin=dict.fromkeys("qkv", "S(2)"))
    assert plan.choices["attention"].rows[0].local == "balanced"
    assert set(plan.cost.bytes_per_axis) == {"cp"} and plan.cost.bytes_per_axis["cp"] > 0


@pytest.mark.parametrize("classes", [8192, 16384, 65536])
def test_the_loss_of_a_layer_costs_alike_by_what_is_declared_and_by_what_runs(classes):
    """Alone the operator is priced by what is declared of it, and where classes are sharded by the text that runs."""

    def loss(classes: int) -> Call:
        rows, weight = (
            torch.empty(many, 4096, dtype=torch.bfloat16, device="meta") for many in (16384, classes)
        )
        target = torch.empty(16384, dtype=torch.int64, device="meta")
        op = torch.ops.shardwise.linear_cross_entropy.default
        return Call.of(op, rows, weight, target, -100, True, True)

    row = Row.parse("R, S(0), R -> R, P(sum), S(0) with local classes")
    shared = form_price(loss(2 * classes), Choice(Mesh.parse("tp=2"), (row,)), H100)
    alone = loss(classes)
    declared, device = facts(alone.op), H100.device
    products = sum(device.product_seconds(*p, torch.bfloat16) for p in declared.products(**alone.arguments))
    traffic = device.traffic_seconds("memory", declared.traffic(**alone.arguments))
    assert shared.compute == pytest.approx(products + traffic, rel=0.08)
    assert shared.scratch == pytest.approx(declared.scratch(**alone.arguments), rel=0.15)


@pytest.mark.parametrize("name", NORMS)
def test_the_ranks_of_a_norm_communicate_once(name):
    call = call_of(name)
    for row in rows_besides(call):
        ((_, size, ranks),) = collectives_inside(call, Choice(Mesh.parse("dp=3"), (row,)), H100)
        assert ranks == 3 and size <= 16 * 3 * math.prod(call.shapes[0][:2])


def test_a_ring_of_two_axes_goes_round_both():
    """Between hosts and inside of them together it sends as often as there are ranks, by the slower links."""
    call, mesh = attention(positions=1 << 20), Mesh.parse("dp=8,cp=8")
    ring = Row.parse(RING)
    both = form_price(call, Choice(mesh, (ring, ring)), H100)
    inside = form_price(call, Choice(mesh, (Row.parse("R, R, R -> R, R"), ring)), H100)
    assert (len(both.collectives), len(inside.collectives)) == (63, 7)
    assert both.compute < inside.compute / 5
    per_byte = [sum(s for *_, s in price.collectives) / price.sent for price in (both, inside)]
    assert per_byte[0] > per_byte[1]
