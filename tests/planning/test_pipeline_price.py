"""What pipelines cost by name: laws between them, and with layouts that have none."""

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise.graph import capture
from shardwise.planning import NamedLayout, Pass, parts_of, pipelined, price_plan, tensor_parallel_plan

WIDTH, LAYERS, SAMPLES, CLUSTER = 512, 6, 8, sw.Cluster.preset("h100")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, tied=False, size=1000):
        super().__init__()
        self.embed = nn.Embedding(size, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, size, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


@cache
def plan(tp=1, tied=False):
    with torch.device("meta"):
        model, tokens = Model(tied), torch.empty(SAMPLES, 256, dtype=torch.int64)
    layout = NamedLayout(tp=tp, sequence=tp > 1)
    return tensor_parallel_plan(capture(model, (tokens,)), layout, layout.mesh, CLUSTER, "adam")


def price(text, passes=8, tied=False):
    layout = NamedLayout.parse(text)
    return price_plan(plan(layout.tp, tied), layout=layout, cluster=CLUSTER, samples=SAMPLES, passes=passes)


@pytest.mark.parametrize("tp", [1, 2])
def test_the_parts_of_a_pass_take_what_the_pass_takes(tp):
    one = Pass(plan(tp))
    parts = parts_of(one, NamedLayout(tp=tp))
    assert [part.name for part in parts] == ["first", *(f"layers.{n}" for n in range(LAYERS)), "last"]
    assert sum(part.forward + part.backward for part in parts) == pytest.approx(sum(one.seconds))
    assert len({name for part in parts for name, _ in part.parameters}) == 3 * LAYERS + LAYERS + 2
    whole = SAMPLES * 256 * WIDTH * 4
    for part in parts[:-1]:
        assert part.sends in (whole, whole // tp)  # replicated or scattered, as the plan has it there
    assert parts[-1].sends == 0


@pytest.mark.parametrize("text", ["dp=8", "dp=8,zero=1,reduce=float32", "fsdp=8"])
def test_a_pipeline_of_one_rank_takes_as_long_as_none(text):
    layout, one = NamedLayout.parse(text), Pass(plan())
    parts = parts_of(one, layout)
    line = pipelined(parts, layout, layout.mesh, CLUSTER, 8, one.plan.cost.update, "adam", (0, len(parts)))
    assert line.time.seconds == pytest.approx(price(text).seconds, rel=0.05)


def test_the_parts_of_a_price_add_up_and_the_bubble_is_what_is_known():
    found = price("pp=4", passes=8)
    assert found.seconds == pytest.approx(sum(vars(found.time).values()))
    assert found.seconds == pytest.approx(found.pipeline.time.seconds)
    times = [stage.time for stage in found.pipeline.stages]
    slowest = max(time.forward + time.backward for time in times)
    assert 8 * slowest <= found.seconds
    assert (4 - 1) / (8 + 4 - 1) - 0.1 < found.pipeline.time.bubble < 0.5


def test_more_micro_batches_and_interleaving_leave_less_idle():
    few, many = price("pp=4", passes=4), price("pp=4", passes=32)
    woven = price("pp=4,schedule=Interleaved1F1B", passes=4)
    assert many.pipeline.time.bubble < few.pipeline.time.bubble
    assert woven.pipeline.time.bubble < few.pipeline.time.bubble
    assert woven.seconds < few.seconds
    assert len(woven.pipeline.stages) == 8


def test_the_first_rank_keeps_more_micro_batches_and_gpipe_all_of_them():
    one, all_ = price("pp=4", passes=8), price("pp=4,schedule=GPipe", passes=8)
    assert [stage.in_flight for stage in one.pipeline.stages] == [4, 3, 2, 1]
    assert [stage.in_flight for stage in all_.pipeline.stages] == [8] * 4
    held, more = (sum(stage.activations for stage in found.pipeline.stages) for found in (one, all_))
    assert held < 0.6 * more


def test_the_traffic_of_all_stages_is_that_of_the_whole_model():
    def bytes_of(found, purpose):
        return sum(each.count * each.size for each in found.traffic if each.purpose == purpose)

    for purpose, plain, piped in (
        ("sum gradients of replicas", "dp=2", "pp=4,dp=2"),
        ("reduce gradients", "fsdp=2,zero=2", "pp=4,fsdp=2,zero=2"),
        ("tensor parallelism", "tp=2,sequence", "pp=4,tp=2,sequence"),
    ):
        assert bytes_of(price(piped), purpose) == bytes_of(price(plain), purpose) > 0
    assert bytes_of(price("pp=4,dp=2"), "send to the next stage") == 3 * 8 * SAMPLES * 256 * WIDTH * 4


def test_ranks_of_a_pipeline_divide_parameters():
    whole, piped = price("dp=2"), price("pp=4,dp=2")
    held = sum(each.memory.parameters for each in piped.held)
    assert held == pytest.approx(whole.memory.parameters, rel=0.01)
    assert piped.mesh == sw.Mesh.parse("pp=4,dp=2")


def test_tied_embeddings_are_on_both_ends_and_summed_between_them():
    tied, apart = price("pp=4,dp=2", tied=True), price("pp=4,dp=2")
    first, *_, last = tied.pipeline.stages
    assert first.time.step > apart.pipeline.stages[0].time.step
    assert last.time.step > apart.pipeline.stages[-1].time.step
    table = 1000 * WIDTH * 4
    assert sum(each.memory.parameters for each in tied.held) == sum(
        each.memory.parameters for each in apart.held
    )
    assert min(first.parameters, last.parameters) >= table


def test_a_slow_host_is_waited_for():
    one, layout = Pass(plan()), NamedLayout.parse("pp=2")
    slow = replace(CLUSTER, device=replace(CLUSTER.device, host={"eager": (0.0, 1e-3)}))
    late = Pass(replace(one.plan, cluster=slow))
    fast, waits = (price_plan(each.plan, layout=layout, cluster=slow, passes=8) for each in (one, late))
    assert fast.time.waiting == 0 < waits.time.waiting
    assert waits.seconds == pytest.approx(waits.pipeline.time.seconds)
    calls = sum(part.starting for part in parts_of(late, layout))
    assert calls == pytest.approx(1e-3 * len(late.plan.graph.nodes))
    assert waits.seconds > 8 * calls / 2


def test_what_cannot_be_is_refused_in_one_sentence():
    with pytest.raises(
        sw.UsageError, match="a model of 8 parts cannot be cut into 16 stages: give at most 8"
    ):
        price("pp=16", passes=16)
    with pytest.raises(
        sw.UsageError, match="torch cannot run 1F1B of 4 stages on 4 ranks with 2 micro-batches"
    ):
        price("pp=4", passes=2)


def test_a_price_shows_its_stages():
    found = price("pp=2,dp=2")
    assert "of the ranks' time is idle" in str(found)
    assert "first to" in str(found) and "send to the next stage" in str(found)
    document = found.to_json()
    assert document["bubble"] == found.pipeline.time.bubble
    assert [stage["in_flight"] for stage in document["stages"]] == [2, 1]
