"""A cluster in pictures: bandwidth over the size of messages, and operations per second over the shape of products."""

from collections.abc import Iterator
from typing import Any

import torch

from ..display import Bar, Bars, Block, Heading, Table
from ._cluster import Cluster
from ._device import Device
from ._links import Collective, Link, Span
from ._mesh import Mesh

SIZES = tuple(2**exponent for exponent in range(12, 31, 2))
_SQUARES = (256, 512, 1024, 2048, 4096, 8192, 16384)
_NARROW = (64, 256, 512, 1024, 2048, 4096)


def cluster_blocks(cluster: Cluster) -> Iterator[Block]:
    """What `shardwise show cluster` shows."""
    yield Heading(1, f"Cluster {cluster.name}")
    if cluster.origin:
        yield cluster.origin
    yield from _device_blocks(cluster.device)
    for depth, level in enumerate(cluster.levels):
        yield from _level_blocks(cluster, depth, level.link)


def cluster_numbers(cluster: Cluster) -> dict[str, Any]:
    """The same as plain data: seconds of collectives and of matrix products, beside the document."""
    collectives = [
        {
            "ranks": ranks,
            "collective": collective,
            "size": size,
            "seconds": link.time(collective, size, ranks),
        }
        for depth in range(len(cluster.levels))
        for ranks, link in _groups(cluster, depth)
        for collective in _DRAWN
        for size in SIZES
    ]
    device, dtype = cluster.device, _dtype(cluster.device)
    products = [
        {"rows": m, "columns": n, "inner": k, "seconds": device.product_seconds(1, m, n, k, dtype)}
        for m, n, k in (*_squares(), *_narrow())
    ]
    return {"cluster": cluster.to_json(), "collectives": collectives, "products": products}


# -- devices


def _device_blocks(device: Device) -> Iterator[Block]:
    dtype = _dtype(device)
    name, peak = str(dtype)[6:], device.rate(dtype)
    yield Heading(2, f"Device {device.name}")
    if device.origin:
        yield device.origin
    yield Table(
        ("", ""),
        [
            ("memory", f"{device.memory / 1e9:.0f} GB at {device.memory_bandwidth / 1e12:.3g} TB/s"),
            ("peak", f"{peak / 1e12:.4g} Tflop/s in {name}, {device.rate('float32') / 1e12:.3g} in float32"),
        ],
    )
    for title, shapes in (
        ("Square matrix products", _squares()),
        ("Narrow products", _narrow()),
    ):
        yield Heading(3, f"{title}, in {name}: Tflop/s and share of peak")
        rates = [2 * m * n * k / device.product_seconds(1, m, n, k, dtype) for m, n, k in shapes]
        yield Bars(
            tuple(
                Bar(f"{m} x {n} x {k}", f"{rate / 1e12:.3g}", rate / peak)
                for (m, n, k), rate in zip(shapes, rates, strict=True)
            )
        )


def _dtype(device: Device) -> torch.dtype:
    return torch.bfloat16 if "bfloat16" in device.flops else torch.float32


def _squares() -> list[tuple[int, int, int]]:
    return [(n, n, n) for n in _SQUARES]


def _narrow() -> list[tuple[int, int, int]]:
    return [(8192, n, 8192) for n in _NARROW]


# -- links

_DRAWN: tuple[Collective, ...] = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def _level_blocks(cluster: Cluster, depth: int, link: Link) -> Iterator[Block]:
    size = cluster.levels[depth].size
    title = f"Inside an island of {size}" if size is not None else "Between islands" if depth else "Links"
    yield Heading(2, title)
    if link.origin:
        yield link.origin
    groups = _groups(cluster, depth)
    ranks, widest = groups[-1]
    rates = [_bus("all_gather", s, ranks, widest) for s in SIZES]
    yield Heading(3, f"All-gather among {ranks}, by bytes: bus bandwidth in GB/s and share of the best")
    yield Bars(
        tuple(
            Bar(_bytes(s), f"{rate / 1e9:.3g}", rate / max(rates))
            for s, rate in zip(SIZES, rates, strict=True)
        )
    )
    for collective in _DRAWN:
        yield Heading(3, f"{collective}: time in us, by bytes and number of ranks")
        yield Table(
            (">", *(f">{count}" for count, _ in groups)),
            [
                (_bytes(s), *(f"{link.time(collective, s, count) * 1e6:.4g}" for count, link in groups))
                for s in SIZES[::2]
            ],
        )


def _groups(cluster: Cluster, depth: int) -> list[tuple[int, Link | Span]]:
    """Groups of a level: ranks of one island, or those of full islands."""
    inner = cluster.levels[depth - 1].size if depth else 1
    size = cluster.levels[depth].size
    assert inner is not None
    counts = [n for n in (2, 4, 8, 16, 32) if size is None or n * inner <= size]
    return [(n * inner, cluster.link(Mesh.parse(f"d={n * inner}"), "d")) for n in counts]


def _bus(collective: Collective, size: int, ranks: int, link: Link | Span) -> float:
    """The rate at which each rank sends, if each sends what it must."""
    moved = (ranks - 1) / ranks * size * (2 if collective == "all_reduce" else 1)
    return moved / link.time(collective, size, ranks)


def _bytes(size: int) -> str:
    unit = "KiB" if size < 2**20 else "MiB" if size < 2**30 else "GiB"
    return f"{size // {'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30}[unit]} {unit}"
