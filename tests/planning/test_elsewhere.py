"""Arguments from other meshes and results that go to them: the transfer is planned and priced."""

import json

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import TensorInfo
from shardwise.layout import Layout

LOADER = sw.Elsewhere("loader=2", "S(0)", bandwidth=1e6, latency=0.0)
INFO = TensorInfo((8, 4), torch.float32)
GPUS = sw.Mesh.parse("d=4")
CLUSTER = sw.Cluster.of("h100")
MODEL, X = nn.Linear(4, 4, bias=False), torch.rand(8, 4)


@pytest.mark.parametrize(
    ("layout", "arrives", "most"),
    [
        ("S(0)", True, 16),  # each of two loaders sends its 16 elements, each device receives 8
        ("R", True, 64),  # each device receives all 32, from both loaders: each sends 16 to each of four
        ("S(1)", True, 16),
        ("S(0)", False, 16),
        ("R", False, 16),  # replicas share the sending
    ],
)
def test_a_transfer_takes_as_long_as_the_device_that_moves_most(layout, arrives, most):
    seconds = LOADER.seconds(INFO, Layout.parse(layout, GPUS), CLUSTER, arrives=arrives)
    assert seconds == pytest.approx(most * 4 / 1e6)


def test_what_a_device_of_the_same_kind_has_is_not_sent():
    same = sw.Elsewhere("other=4", "S(0)", device="cuda", bandwidth=1e6, latency=0.0)
    assert same.seconds(INFO, Layout.parse("S(0)", GPUS), CLUSTER, arrives=True) == 0
    assert same.seconds(INFO, Layout.parse("R", GPUS), CLUSTER, arrives=True) > 0


def test_a_slow_link_decides_the_layout_of_an_argument():
    options = {"mesh": "d=4", "training": False, "cluster": "h100"}
    slow = sw.plan(MODEL, (X,), elsewhere={"input": LOADER}, **options)
    [entry] = slow.graph.with_role("user_input")
    assert str(slow.inputs[entry.name]) in ("S(0)", "S(1)")  # replicated, every byte would come four times
    assert slow.cost.communication["transfer"] == pytest.approx(16 * 4 / 1e6)
    assert slow.cost.seconds > slow.cost.communication["transfer"]
    assert slow.bound == pytest.approx(slow.cost.seconds) and "transfer" in slow.summary()
    whole = sw.plan(MODEL, (X,), elsewhere={"input": LOADER}, pin={"input": "R"}, **options)
    assert whole.cost.communication["transfer"] == pytest.approx(64 * 4 / 1e6)
    assert "transfer" not in sw.plan(MODEL, (X,), **options).cost.communication
    again = sw.Plan.from_json(json.loads(json.dumps(slow.to_json())))
    assert again == slow and again.elsewhere == {"input": LOADER}


def test_results_go_elsewhere_too():
    place = sw.Elsewhere("results=2", "S(0)", ranks=(2, 3), bandwidth=1e6)
    plan = sw.plan(MODEL, (X,), mesh="d=4", training=False, elsewhere={"output:*": place})
    assert str(plan.outputs[0]).startswith("S(") or plan.cost.communication["transfer"] > 0
    assert sw.verify(MODEL, (X,), plan=plan)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: sw.Elsewhere("a=2", "P(sum)"),
            r"a tensor on another mesh cannot be P\(sum\): use R and S only",
        ),
        (lambda: sw.Elsewhere("a=2", "R", ranks=(1,)), r"mesh a=2 has 2 ranks, but 1 are given"),
        (lambda: sw.Elsewhere("a=2", "R", bandwidth=0), r"bandwidth is 0: give bytes per second"),
        (
            lambda: sw.plan(MODEL, (X,), mesh="d=2", elsewhere={"y": LOADER}),
            r"'y' matches no argument or result",
        ),
        (
            lambda: sw.plan(MODEL, (X,), mesh="d=2", elsewhere={"input": 3}),
            r"elsewhere\['input'\] is 3: give an",
        ),
        (
            lambda: sw.plan(MODEL, (X,), mesh="d=2", elsewhere={"input": sw.Elsewhere("a=2", "S(2)")}),
            r"shards dim 2 of input, which has 2 dims",
        ),
        (
            lambda: sw.plan(MODEL, (X,), mesh="d=2", elsewhere={"output": LOADER}),
            r"output has a gradient, which would have to come back from S\(0\) on cpu mesh loader=2",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(make, sentence):
    with pytest.raises(sw.UsageError, match=sentence):
        make()
