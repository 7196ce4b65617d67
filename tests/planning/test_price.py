"""What named layouts cost: laws between them, and what each moves and holds."""

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise.graph import capture
from shardwise.planning import Move, NamedLayout, _search, plan_graph, price_graph
from shardwise.planning._price import micro_batch

WIDTH, LAYERS, BATCH, POSITIONS = 512, 3, 32, 128


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        y = self.norm(x)
        heads = (p(y).unflatten(-1, (8, -1)).transpose(1, 2) for p in (self.query, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 1000, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


@pytest.fixture(scope="module")
def built():
    with torch.device("meta"):
        return Model(), (torch.empty(BATCH, POSITIONS, dtype=torch.int64),)


@pytest.fixture(scope="module")
def price(built):
    """Prices by layout; the model is captured once for each size of a micro-batch."""

    @cache
    def graph(samples):
        model, (tokens,) = built
        return capture(model, (tokens[:samples],))

    @cache
    def made(text, cluster="h100"):
        layout = NamedLayout.parse(text)
        samples, passes, _ = micro_batch(layout, built[1], None)
        return price_graph(graph(samples), layout=layout, cluster=cluster, samples=samples, passes=passes)

    return made


def traffic(price, purpose):
    return [each for each in price.traffic if each.purpose == purpose]


def test_one_device_costs_what_its_plan_costs(price):
    alone = price("dp=1")
    plan = plan_graph(alone.plan.graph, mesh="dp=1", compare=False, confirm=False)
    assert alone.seconds == pytest.approx(plan.cost.seconds)
    assert alone.peak == plan.cost.peak
    assert not alone.traffic


def test_passes_of_micro_batches_make_up_a_step(price):
    one, four = price("dp=2,micro_batch=16"), price("dp=2,micro_batch=4")
    assert (one.passes, four.passes, four.samples) == (1, 4, 4)
    assert four.memory.activations < one.memory.activations / 3
    # Gradients of replicas are accumulated, and summed once a step.
    assert sum(each.count for each in four.traffic) == sum(each.count for each in one.traffic)
    many, more = price("fsdp=2,micro_batch=8"), price("fsdp=2,micro_batch=4")
    assert sum(t.count for t in more.traffic) == 2 * sum(t.count for t in many.traffic)


def test_each_stage_of_zero_holds_less(price):
    stages = [price(f"{zero},micro_batch=4") for zero in ("dp=4", "fsdp=4,zero=1", "fsdp=4,zero=2", "fsdp=4")]
    parts = ("states", "gradients", "parameters")
    for (before, after), part in zip(pairwise(stages), parts, strict=True):
        smaller, larger = getattr(after.memory, part), getattr(before.memory, part)
        assert smaller == pytest.approx(larger / 4, rel=0.01)


def test_parameters_are_gathered_twice_unless_they_stay(price):
    again, kept = price("fsdp=8"), price("fsdp=8,reshard=no")
    gathers = [sum(each.count for each in traffic(p, "gather parameters")) for p in (again, kept)]
    # Backward of the embedding needs no table, and the head is still there when backward begins.
    assert gathers == [2 + 2 * LAYERS, 2 + LAYERS]
    assert kept.peak > again.peak
    size = sum(each.size * each.count for each in traffic(kept, "gather parameters"))
    assert size == sum(entry.tensor.bytes for entry in kept.plan.graph.with_role("parameter"))


def test_what_is_hidden_is_not_waited_for(price):
    fast, slow = price("fsdp=8"), price("fsdp=8", "laptop")
    for found in (fast, slow):
        assert 0 < found.time.data_parallel < sum(each.seconds for each in found.traffic)


def test_hybrid_sharding_sums_shards_over_replicas(price):
    hybrid, sharded = price("dp=2,fsdp=4"), price("fsdp=4")
    (summed, *_), (reduced, *_) = (
        traffic(hybrid, p) for p in ("sum gradients of replicas", "reduce gradients")
    )
    assert (summed.collective, summed.axis, reduced.collective, reduced.axis) == (
        *("all_reduce", "dp"),
        *("reduce_scatter", "fsdp"),
    )
    assert summed.size == reduced.size // 4
    assert hybrid.memory.states == sharded.memory.states


def test_gradients_are_reduced_in_the_dtype_that_is_given(price):
    own, half = (price(f"fsdp=4{more}") for more in ("", ",reduce=bfloat16"))
    sizes = [sum(t.size * t.count for t in traffic(p, "reduce gradients")) for p in (own, half)]
    assert sizes[0] == 2 * sizes[1] and half.memory.gradients == own.memory.gradients // 2


def test_recomputing_takes_time_and_saves_memory(price):
    none, some, every_second, full = (
        price(f"dp=2,recompute={policy}") for policy in ("none", "selective", "alternate", "full")
    )
    for between in (some, every_second):
        assert 0 == none.time.recompute < between.time.recompute < full.time.recompute
        assert none.memory.activations > between.memory.activations > full.memory.activations
    forward = sum(
        seconds
        for entry, seconds in zip(full.plan.schedule.entries, full.plan.cost.entries, strict=True)
        if not isinstance(entry, Move) and entry.node.phase == "forward"
    )
    assert full.time.recompute < forward


def test_what_is_cached_to_recompute_less_is_held(price):
    selective, full = price("dp=2,recompute=selective"), price("dp=2,recompute=full")
    first = [next(each.memory for each in p.held if each.block == "layers.1") for p in (selective, full)]
    size = 16 * POSITIONS * WIDTH * 4
    # Query and value, the result of attention, and the product before the activation.
    assert first[0].activations - first[1].activations == pytest.approx((1 + 1 + 1 + 4) * size, rel=0.05)


def test_the_allocator_reserves_more_than_is_held(price):
    for layout in ("dp=2", "fsdp=4", "fsdp=8,reshard=no"):
        assert price(layout).reserved > 1.05 * price(layout).peak


def test_tensor_parallelism_cuts_products_as_megatron_does(price):
    cut = price("tp=4")
    layouts = {
        entry.target: str(cut.plan.inputs[entry.name]) for entry in cut.plan.graph.with_role("parameter")
    }
    for layer in range(LAYERS):
        for name in ("query", "key", "value", "up"):
            assert layouts[f"layers.{layer}.{name}.weight"] == "S(0)"
        for name in ("out", "down"):
            assert layouts[f"layers.{layer}.{name}.weight"] == "S(1)"
        assert layouts[f"layers.{layer}.norm.weight"] == "R"
    whole = [each for each in cut.traffic if each.size == BATCH * POSITIONS * WIDTH * 4]
    assert {each.collective for each in whole} == {"all_reduce"}
    assert sum(each.count for each in whole) == 3 + 4 * LAYERS  # and the embedding's, twice, and the head's


def test_collectives_of_backward_are_hidden_beside_products_of_weights(price):
    waited, beside = price("tp=4,sequence"), price("tp=4,sequence,overlap")
    assert waited.traffic == beside.traffic
    assert waited.time.compute == pytest.approx(beside.time.compute)
    # At most what backward moves is hidden, and a seventh of it is lost again.
    assert 0.4 * waited.time.tensor_parallel < beside.time.tensor_parallel < 0.9 * waited.time.tensor_parallel


def test_sequence_parallelism_scatters_what_lies_between_products(price):
    plain, scattered = price("tp=4"), price("tp=4,sequence")
    assert plain.plan.inputs == scattered.plan.inputs
    kinds = {each.collective for each in scattered.traffic if each.size == BATCH * POSITIONS * WIDTH * 4}
    assert kinds == {"reduce_scatter", "all_gather"}
    assert scattered.memory.activations < plain.memory.activations
    assert scattered.time.compute < plain.time.compute


def test_a_price_shows_itself_and_is_a_document(price):
    found = price("fsdp=4,tp=2,zero=1,micro_batch=4,reduce=float32")
    assert repr(found).startswith("<Price of Model as fsdp=4,tp=2,zero=1")
    assert max(map(len, str(found).splitlines())) <= 80
    for words in ("a step", "memory: ", "gather updated parameters", "2 passes a step, of 4 samples"):
        assert words in str(found)
    assert "collectives" in found._repr_html_()
    document = json.loads(json.dumps(found.to_json()))
    assert document["seconds"] == pytest.approx(sum(document["time"].values()))
    assert document["peak"] == sum(document["memory"].values())


@pytest.mark.parametrize(
    ("layout", "complaint"),
    [
        (None, "price needs a layout"),
        ("dp=3", "a batch of 32 cannot be cut among the 3 data parallel ranks"),
        ("dp=4,micro_batch=3", "micro_batch=3 does not divide the 8 samples"),
    ],
)
def test_what_cannot_be_cut_is_refused(built, layout, complaint):
    with pytest.raises(sw.UsageError, match=complaint):
        sw.price(*built, layout=layout)


def test_the_public_function_captures_one_micro_batch(built, price):
    assert sw.price(*built, layout="dp=4,micro_batch=4").to_json() == price("dp=4,micro_batch=4").to_json()


def test_compiling_the_solver_does_not_count_as_time_of_a_search(monkeypatch):
    """A search that compiled first would find nothing in time on a busy machine."""
    done = []
    monkeypatch.setattr(_search, "prepare", lambda: done.append("compiled"))
    monkeypatch.setattr(_search.time, "monotonic", lambda: done.append("started") or 0.0)
    assert _search.Clock(60.0).left == 60.0
    assert done[:2] == ["compiled", "started"]


def test_a_loss_outside_of_compiled_blocks_is_eager(built):
    layout = NamedLayout.parse("dp=1,micro_batch=4")
    eager, regional, compiled = (
        price_graph(
            capture(built[0], (built[1][0][:4],), execution=how), layout=layout, cluster="h100", samples=4
        )
        for how in ("eager", "regional", "compiled")
    )
    assert compiled.seconds < regional.seconds < eager.seconds
    of_loss = [max(e.memory.bytes for e in p.held if not e.block) for p in (compiled, regional)]
    of_blocks = [max(e.memory.bytes for e in p.held if e.block) for p in (compiled, regional)]
    assert of_loss[0] < of_loss[1]
    assert of_blocks[1] == pytest.approx(of_blocks[0], rel=0.05)


def test_programs_are_not_compiled_block_by_block(built):
    with pytest.raises(sw.UsageError, match="'regional' is for"):
        sw.plan(*built, mesh="dp=2", execution="regional")


def test_passes_take_no_less_than_the_host_needs_to_start_them():
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))), torch.empty(32, 64, device="meta")
    cluster = sw.Cluster.preset("h100")
    host = {"eager": (0.0, 1e-3), "collective": (0.0, 1.0)}
    waiting = replace(cluster, device=replace(cluster.device, host=host))
    for layout, collectives in (("dp=2", 0), ("dp=2,micro_batch=4", 0), ("tp=2", 1)):
        free, price = (sw.price(model.to("meta"), (x,), layout=layout, cluster=c) for c in (cluster, waiting))
        calls, moves = (
            len(price.plan.graph.nodes),
            [e for e in price.plan.schedule.entries if isinstance(e, Move)],
        )
        sent = sum(len(move.change.collectives) for move in moves)
        assert bool(sent) == bool(collectives)
        assert price.time.starting == pytest.approx(price.passes * (1e-3 * calls + sent))
        assert price.seconds == pytest.approx(
            price.time.starting + free.time.data_parallel + free.time.optimizer
        )
        assert free.time.waiting == 0 < price.time.waiting


def test_gradients_that_every_rank_keeps_are_reduced_in_buckets_of_ddp():
    model, x = nn.Linear(4096, 4096, bias=False, device="meta"), torch.empty(16, 4096, device="meta")
    sums, scattered = (sw.price(model, (x,), layout=layout) for layout in ("dp=4", "fsdp=4"))
    [reduced] = [each for each in sums.traffic if "gradients" in each.purpose]
    assert reduced.count == 3 and 3 * reduced.size == 4 * 4096**2 // 3 * 3
    [reduced] = [each for each in scattered.traffic if "gradients" in each.purpose]
    assert reduced.count == 1 and reduced.size == 4 * 4096**2
