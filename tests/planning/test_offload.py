"""Homes in the memory of the host: as many as a limit on memory takes, priced by the host's link and processors."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import capture
from shardwise.planning import DoesNotFit, plan_graph

LAPTOP = sw.Cluster.of("laptop")
WITH_HOST = replace(LAPTOP, device=replace(LAPTOP.device, host_link=1e10, host_bandwidth=2e10))


@pytest.fixture(scope="module")
def layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.GELU(), nn.Linear(128, 64, bias=False))
    args = (torch.rand(16, 64),)
    return model, args, capture(model, args)


def planned(graph, **options):
    options = {"cluster": WITH_HOST, "optimizer": "adam", "compare": False, "confirm": False, **options}
    return plan_graph(graph, mesh="d=2", **options)


@pytest.mark.parametrize("passes", [1, pytest.param(3, marks=pytest.mark.long)])
def test_what_does_not_fit_goes_to_the_host_and_nothing_else(layers, passes):
    model, args, graph = layers
    free = planned(graph, micro_batches=passes, offload=True)
    assert not free.on_host and free.cost.seconds == planned(graph, micro_batches=passes).cost.seconds
    with pytest.raises(DoesNotFit) as refused:
        planned(graph, micro_batches=passes, zero=True, memory=1)
    memory = refused.value.at_least - 1
    plan = planned(graph, micro_batches=passes, offload=True, memory=memory)
    assert plan.on_host and plan.cost.peak <= memory and plan.bound <= plan.cost.seconds
    read = sw.Plan.from_json(plan.to_json())
    assert read == plan and "on the host" in plan.summary()
    report = sw.verify(model, args, plan=read, steps=2, optimizer="adamw", only_plan=True)
    assert report.ok, report
    assert report.peak == report.predicted_peak


def test_states_are_not_held_and_cost_what_the_host_takes(layers):
    graph = layers[2]
    plan = planned(graph, pin={"*weight": "R"})
    parameters = {entry.name: entry.tensor for entry in graph.with_role("parameter")}
    homes = {name: plan.inputs[name] for name in parameters}
    other = replace(plan, homes=homes, on_host=tuple(homes))
    size = sum(tensor.bytes for tensor in parameters.values())
    # A copy on the device takes the place of the parameter; two states go.
    assert plan.cost.lasting - other.cost.lasting == 2 * size
    device, moved = WITH_HOST.device, 7 * size
    update = 2 * size / device.host_link + moved / device.host_bandwidth
    assert other.cost.update == pytest.approx(update)


def test_a_cluster_whose_host_is_not_known_is_refused(layers):
    with pytest.raises(sw.UsageError, match="offload needs to know the host of cluster 'laptop'"):
        planned(layers[2], cluster="laptop", offload=True)


@pytest.mark.parametrize("name", ["h100", "h200", "a100"])
def test_presets_say_how_fast_hosts_are(name):
    device = sw.Cluster.of(name).device
    assert device.host_link < device.memory_bandwidth / 20 and "Copies to the host" in device.origin
    assert sw.Cluster.from_json(sw.Cluster.of(name).to_json()).device == device
