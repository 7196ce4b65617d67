"""The price of a matrix product follows from its shape: tiles in waves, split inner dims, traffic, launch."""

from dataclasses import replace

import pytest
import torch

from shardwise import Cluster
from shardwise.errors import UsageError
from shardwise.mesh import Device, Matmul, Tile

BF16 = torch.bfloat16
LAW = Matmul(processors=100, tiles=(Tile(128, 128, 0.5, 0.0),), launch=1e-6, memory=1.0)
DEVICE = Device("d", {"float32": 1e14, "bfloat16": 1e15}, 80e9, 1e30, matmul=LAW)


def seconds(device, *shape, dtype=BF16):
    return device.product_seconds(*shape, dtype)


def test_a_wave_takes_as_long_as_it_does_full():
    full = seconds(DEVICE, 1, 1280, 1280, 4096)
    assert full == pytest.approx(1e-6 + 2 * 1280 * 1280 * 4096 / 0.5e15)
    unsplit = replace(DEVICE, matmul=replace(LAW, split=1.0))
    assert seconds(unsplit, 1, 1280, 640, 4096) == seconds(unsplit, 1, 1280, 1280, 4096)
    assert seconds(unsplit, 1, 1280, 1290, 4096) == pytest.approx(2 * full - 1e-6)


def test_a_smooth_device_loses_little_in_the_last_wave():
    smooth = replace(DEVICE, matmul=replace(LAW, smooth=1.0))
    full = seconds(smooth, 1, 1280, 1280, 4096) - 1e-6
    assert seconds(smooth, 1, 1280, 1408, 4096) - 1e-6 == pytest.approx(1.1 * full)


def test_few_tiles_split_the_inner_dim():
    alone = replace(DEVICE, matmul=replace(LAW, split=1.0))
    assert seconds(DEVICE, 1, 128, 128, 65536) < seconds(alone, 1, 128, 128, 65536) / 20


def test_a_small_tile_fills_the_device_where_a_large_one_does_not():
    both = replace(DEVICE, matmul=replace(LAW, split=1.0, tiles=(*LAW.tiles, Tile(64, 64, 0.3, 0.0))))
    assert seconds(both, 1, 512, 512, 4096) < seconds(DEVICE, 1, 512, 512, 100_000)
    assert seconds(both, 1, 512, 512, 4096) - 1e-6 == pytest.approx(2 * 64 * 64 * 4096 / (0.3e15 / 100))


def test_a_batch_fills_waves_as_rows_do():
    assert seconds(DEVICE, 10, 128, 1280, 4096) == seconds(DEVICE, 1, 1280, 1280, 4096)


def test_which_side_is_narrow_makes_no_difference():
    for name in ("a100", "h100", "b200"):
        device = Cluster.preset(name).device
        assert seconds(device, 1, 32, 8192, 4096) == seconds(device, 1, 8192, 32, 4096)


def test_traffic_is_a_floor_and_the_cache_lowers_it():
    slow = replace(DEVICE, memory_bandwidth=1e12)
    moved = 2 * (8192 * 16 + 8192 * 8192 + 16 * 8192)
    assert seconds(slow, 1, 8192, 16, 8192) == pytest.approx(1e-6 + moved / 1e12, rel=0.01)
    cached = replace(slow, matmul=replace(LAW, cache=1e12, cached=3.0))
    assert seconds(cached, 1, 8192, 16, 8192) == pytest.approx(1e-6 + moved / 3e12, rel=0.05)


def test_long_products_run_at_a_lower_clock():
    hot = replace(DEVICE, matmul=replace(LAW, throttle=0.05, throttle_after=1e-4))
    assert seconds(hot, 1, 1280, 1280, 64) == pytest.approx(seconds(DEVICE, 1, 1280, 1280, 64), rel=0.01)
    assert seconds(hot, 1, 16384, 16384, 16384) > 1.2 * seconds(DEVICE, 1, 16384, 16384, 16384)


def test_dtypes_have_their_peak_and_their_share_of_it():
    half = replace(DEVICE, matmul=replace(LAW, dtypes={"float32": 0.5}))
    assert seconds(half, 1, 8192, 8192, 8192, dtype=torch.float32) == pytest.approx(
        20 * seconds(DEVICE, 1, 8192, 8192, 8192), rel=0.01
    )


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "b200", "h100-meta"])
def test_presets_reach_more_of_the_peak_in_larger_products(name):
    device = Cluster.preset(name).device
    shares = [2 * n**3 / seconds(device, 1, n, n, n) / device.rate(BF16) for n in (256, 1024, 4096, 8192)]
    assert shares[0] < 0.1 < shares[1] < shares[2]
    assert 0.6 < shares[3] < 0.95


def test_the_law_of_the_h200_matches_its_own_measurements():
    """Samples of benchmarks/results, with arguments from memory rather than the cache; the law is fitted to others'."""
    device = Cluster.preset("h200").device
    for rows, inner, columns, rate in ((4096, 4096, 4096, 788e12), (8192, 4096, 1024, 778e12)):
        measured = 2 * rows * inner * columns / rate
        assert seconds(device, 1, rows, columns, inner) == pytest.approx(measured, rel=0.05)


def test_a_law_needs_tiles():
    with pytest.raises(UsageError, match="at least one tile"):
        replace(LAW, tiles=())
