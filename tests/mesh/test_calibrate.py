"""What was measured decides the prices: fitting finds the device that samples came from."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from shardwise import Cluster
from shardwise.errors import UsageError
from shardwise.mesh import Link, fit_file
from shardwise.mesh._calibrate import fit, predicted
from shardwise.mesh._measure import FORMAT, Sample, cases, measure

SAMPLES = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_samples.json"


def samples_of(device, more=()):
    """The samples that a device with these prices would give."""
    found = [case.sample(0.0) for case in cases("cpu", 1.0) if case.kind != "launch"]
    priced = [asdict(replace(s, seconds=predicted(device, s))) for s in found]
    launch = asdict(Sample("launch", "neg", "float32", 0, 0, device.launch))
    return {
        "format": FORMAT,
        "device": "NVIDIA H200",
        "devices": 4,
        "memory": 150e9,
        "samples": [launch, *priced, *more],
    }


def test_a_device_is_found_again_from_its_own_prices():
    preset = Cluster.preset("h200").device
    rates = {**preset.matmul.dtypes, "bfloat16": 0.8, "float32": 1.2, "float64": 0.9}
    device = replace(
        preset,
        matmul=replace(preset.matmul, dtypes=rates),
        efficiency={
            "attention": 0.5,
            "attention_backward": 0.4,
            "memory": 0.9,
            "reduction": 0.5,
        },
        launch=3e-6,
        startup={"memory": 1e-6, "reduction": 2e-6, "strided": 5e-7},
        exposed={"attention": 0.6, "attention_backward": 0.3},
        elements=1e11,
    )
    made = fit(samples_of(device))
    found = made.cluster.device
    assert found.launch == 3e-6
    assert found.matmul == device.matmul
    assert found.elements == pytest.approx(1e11, rel=0.02)
    for kind, share in device.efficiency.items():
        assert found.share(kind) == pytest.approx(share, rel=0.02)
    for kind, share in device.exposed.items():
        assert found.exposed[kind] == pytest.approx(share, rel=0.02)
    assert max(fit.worst for fit in made.fits) < 0.05


def test_a_device_without_a_law_of_products_is_fitted_by_their_share_of_peak():
    device = replace(
        Cluster.preset("l40s").device, efficiency={"matmul": 0.6, "memory": 0.9}, startup={"matmul": 4e-6}
    )
    found = fit(samples_of(device) | {"device": "NVIDIA L40S"}).cluster.device
    assert found.share("matmul") == pytest.approx(0.6, rel=0.02)
    assert found.startup["matmul"] == pytest.approx(4e-6, rel=0.1)


def test_a_kind_of_which_no_sample_takes_longer_than_a_launch_keeps_its_share():
    device = Cluster.preset("h200").device
    document = samples_of(device)
    for sample in document["samples"]:
        if sample["kind"] == "reduction":
            sample["seconds"] = device.launch
    assert fit(document).cluster.device.share("reduction") == device.share("reduction")


def test_the_link_between_several_gpus_is_measured():
    link = Link(bandwidth=1e11, latency=2e-6)
    copies = [
        asdict(Sample("link", "copy", "uint8", 0, size, link.time("permute", size, 2)))
        for size in (2**12, 2**20, 2**28)
    ]
    inner, outer = fit(samples_of(Cluster.preset("h200").device, copies)).cluster.levels
    assert inner.size == 4
    assert inner.link.bandwidth == pytest.approx(1e11, rel=0.01)
    assert outer == Cluster.preset("h200").levels[-1]


def test_the_h200_preset_is_what_was_measured():
    found, preset = fit_file(SAMPLES).cluster.device, Cluster.preset("h200").device
    assert replace(found, memory=preset.memory) == preset


def test_a_calibrated_cluster_is_read_from_its_file(tmp_path):
    made = fit_file(SAMPLES, links="a100").cluster
    (tmp_path / "here.json").write_text(json.dumps(made.to_json()))
    assert Cluster.of(tmp_path / "here.json") == made
    assert made.levels == Cluster.preset("a100").levels


def test_every_case_runs_here():
    kinds = set()
    for case in cases("cpu", 1e-6):
        case.call(*case.make())
        kinds.add(case.kind)
    assert {*Cluster.preset("h200").device.efficiency, "matmul", "strided", "launch"} == kinds


def test_the_host_needs_a_time_for_a_step_and_one_for_each_call():
    starts = [
        {"execution": execution, "calls": calls, "seconds": step + each * calls}
        for execution, step, each in (("eager", 2e-4, 1.2e-5), ("compiled", 5e-4, 3e-5))
        for calls in (70, 400)
    ]
    made = fit(samples_of(Cluster.preset("h200").device) | {"host": starts})
    host = made.cluster.device.host
    assert host["eager"] == pytest.approx((2e-4, 1.2e-5))
    assert host["compiled"] == pytest.approx((5e-4, 3e-5))
    assert "the host, eager: 0.2 ms a step, 12 us a call" in str(made)


def test_files_that_hold_no_samples_are_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"format": "other"}')
    (tmp_path / "b.json").write_text(json.dumps({"format": FORMAT, "device": "CPU"}))
    empty = {"format": FORMAT, "device": "CPU", "memory": 16e9, "devices": 1, "samples": []}
    (tmp_path / "c.json").write_text(json.dumps(empty))
    with pytest.raises(UsageError, match="'format' is not"):
        fit_file(tmp_path / "a.json")
    with pytest.raises(UsageError, match=r"b.json: expected the field 'memory'"):
        fit_file(tmp_path / "b.json")
    with pytest.raises(UsageError, match="have no launch and no matmul and no memory kernels"):
        fit_file(tmp_path / "c.json")
    with pytest.raises(UsageError, match="cannot be read"):
        fit_file(tmp_path / "none.json")
    unnamed = json.loads(SAMPLES.read_text())
    next(s for s in unnamed["samples"] if s["kind"] == "matmul")["product"] = None
    (tmp_path / "d.json").write_text(json.dumps(unnamed))
    with pytest.raises(UsageError, match="product: expected"):
        fit_file(tmp_path / "d.json")


def test_measuring_counts_its_cases():
    few = [case for case in cases("cpu", 1e-6) if case.kind == "launch"] * 3
    told = []
    measure("cpu", progress=lambda done, total: told.append((done, total)), measured=few)
    assert told == [(1, 3), (2, 3), (3, 3)]
