"""Predictions compared with published measurements: collectives and matrix products.

    SHARDWISE_DATA=../shared/data python benchmarks/truth.py [--by size] [--data FOLDER]

Predicted are the prices that plans use: `Cluster.link(...).time` and `Device.product_seconds` of the device's preset.
The measurements are in `truth/` of the directory SHARDWISE_DATA, described by its README; `--data` names another folder
with the same files, such as one with rows that nothing was fitted to. The shipped fits are of every row in `truth/`;
`--held-out` fits again to two thirds of the sizes and half of the shapes, and judges by the others.
"""

import argparse
import csv
import gzip
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from record import Record, takes_json

from shardwise import Cluster, Mesh
from shardwise.mesh import Collective, Timing

DEVICES = {
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "NVIDIA L40S": "l40s",
}
WIDTHS = {"half": 2, "int8": 1}
SMALLEST = 64 * 1024  # bytes; below, a collective is all latency, and moves by 10 % from run to run


@dataclass(frozen=True)
class CollectiveRow:
    device: str
    collective: Collective
    ranks: int
    timing: Timing

    @property
    def seconds(self) -> float:
        return self.timing.seconds


@dataclass(frozen=True)
class ProductRow:
    """A matrix product; its shape is batch, rows, columns and inner dim."""

    device: str
    shape: tuple[int, int, int, int]
    seconds: float


@cache
def folder() -> Path:
    return Path(os.environ.get("SHARDWISE_DATA", "../shared/data")) / "truth"


def collective_rows(data: Path | None = None) -> list[CollectiveRow]:
    """The sizes in the file count elements: rows of half and int8 agree at equal bytes, not at equal numbers."""
    names: dict[str, Collective] = {"alltoall": "all_to_all"}
    names |= {name: name for name in ("all_gather", "reduce_scatter", "all_reduce")}  # type: ignore[misc]
    found = []
    for row in _rows((data or folder()) / "collectives.csv"):
        width = WIDTHS[row["dtype"]]
        timing = Timing(width * int(row["message_size"]), float(row["latency_ms"]) * 1e-3, width)
        found.append(CollectiveRow(DEVICES[row["device"]], names[row["op"]], int(row["num_gpus"]), timing))
    return found


def product_rows(data: Path | None = None) -> list[ProductRow]:
    return [
        ProductRow(
            DEVICES[row["device"]],
            (1, int(row["m"]), int(row["n"]), int(row["k"])),
            float(row["latency_ms"]) * 1e-3,
        )
        for row in _rows((data or folder()) / "gemm_bf16.csv.gz")
    ]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    yield from csv.DictReader(text.splitlines())


def collective_seconds(row: CollectiveRow, cluster: Cluster) -> float:
    link = cluster.link(Mesh.parse(f"d={row.ranks}"), "d")
    return link.time(row.collective, row.timing.size, row.ranks, itemsize=row.timing.itemsize)


def product_seconds(row: ProductRow, cluster: Cluster) -> float:
    return cluster.device.product_seconds(*row.shape, torch.bfloat16)


def compare(
    record: Record,
    title: str,
    rows: Sequence[CollectiveRow] | Sequence[ProductRow],
    price: Callable[..., float],
    group: Callable[..., str],
    cluster: Callable[[str], Cluster],
) -> None:
    """One line for each device, and for each group of its rows."""
    columns = {"what": "", "rows": "{:,d}", "median error": "{:.1%}", "95th percentile": "{:.1%}"}
    table = record.sheet(title, columns | {"largest": "{:.0%}", "median ratio": "{:.3f}"}, wide=32)
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        ratio = price(row, cluster(row.device)) / row.seconds
        errors[row.device].append(ratio)
        errors[f"{row.device}: {group(row)}"].append(ratio)
    order = {name: place for place, name in enumerate(DEVICES.values())}
    for name in sorted(errors, key=lambda name: (order[name.split(":")[0]], ":" in name)):
        ratios = np.array(errors[name])
        apart = np.abs(ratios - 1)
        table.add(
            *(name, len(ratios), float(np.median(apart)), float(np.quantile(apart, 0.95))),
            *(float(apart.max()), float(np.median(ratios))),
        )


def by_collective(row: CollectiveRow, by: str) -> str:
    if by == "size":
        return f"{int(row.timing.size) // 1024} KiB"
    return f"{row.collective} among {row.ranks}" if by == "ranks" else row.collective


def by_product(row: ProductRow) -> str:
    flops = 2 * np.prod(np.array(row.shape, float))
    narrow = "narrow" if min(row.shape[1:]) <= 128 else "wide"
    return f"{narrow}, {'below' if flops < 1e10 else 'above'} 10 Gflop"


# -- held-out rows of the own data


def held_out_clusters(
    rows: Sequence[CollectiveRow], products: Sequence[ProductRow]
) -> tuple[Callable[[str], Cluster], list[CollectiveRow], list[ProductRow]]:
    """Presets fitted to a part of the rows, and the rest: a fixed half of the shapes, and every third size of
    collectives, of all dtypes, so that what is judged lies between sizes that were fitted."""
    from fit_presets import LINKS, matmul_law

    from shardwise.mesh import fit_curve

    out = {row: round(np.log2(row.timing.size)) % 3 == 0 for row in rows}
    kept, judged = ([row for row in rows if out[row] is held] for held in (False, True))
    half = np.random.default_rng(1).random(len(products)) < 0.5
    clusters = {}
    for name in DEVICES.values():
        cluster = Cluster.preset(name)
        devices = next(devices for devices in LINKS.values() if name in devices)
        found: dict[tuple[Collective, int], list[Timing]] = defaultdict(list)
        for row in kept:
            if row.device in devices:
                found[row.collective, row.ranks].append(row.timing)
        curves = tuple(fit_curve(*group, timings) for group, timings in found.items())
        inner = replace(cluster.levels[0], link=replace(cluster.levels[0].link, measured=curves))
        device = cluster.device
        mine = [row for row, keep in zip(products, half, strict=True) if keep and row.device == name]
        if mine:
            shapes, seconds = np.array([row.shape for row in mine]), np.array([row.seconds for row in mine])
            device = replace(device, matmul=matmul_law(name, shapes, seconds))
        clusters[name] = replace(cluster, device=device, levels=(inner, *cluster.levels[1:]))
    return clusters.__getitem__, judged, [r for r, keep in zip(products, half, strict=True) if not keep]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a folder with collectives.csv and gemm_bf16.csv.gz")
    parser.add_argument("--by", default="collective", choices=["collective", "ranks", "size"])
    parser.add_argument("--held-out", action="store_true", help="fit a part of the rows, judge by the others")
    takes_json(parser)
    options = parser.parse_args()
    data = options.data or folder()
    if not (data / "collectives.csv").exists():
        print(f"no measurements: {data} is not there; name the directory with truth/ in SHARDWISE_DATA")
        return
    record = Record(__doc__, options.json)
    collectives, products = collective_rows(data), product_rows(data)
    cluster: Callable[[str], Cluster] = Cluster.preset
    if options.held_out:
        cluster, collectives, products = held_out_clusters(collectives, products)
    which = "rows held out of the fit" if options.held_out else "all rows"
    compare(
        record,
        f"Collectives on one host, 64 KiB and more: {which}",
        [row for row in collectives if row.timing.size >= SMALLEST],
        collective_seconds,
        lambda row: by_collective(row, options.by),
        cluster,
    )
    compare(record, f"Matrix products in bfloat16: {which}", products, product_seconds, by_product, cluster)


if __name__ == "__main__":
    main()
