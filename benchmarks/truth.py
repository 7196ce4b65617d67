"""Predictions compared with published measurements: collectives, matrix products and whole training steps.

    SHARDWISE_DATA=../shared/data python benchmarks/truth.py [--by size] [--data FOLDER]
    SHARDWISE_DATA=../shared/data python benchmarks/truth.py --runs named,fsdp,grid [--each]
    python benchmarks/truth.py --hidden

Predicted are the prices that plans use: `Cluster.link(...).time` and `Device.product_seconds` of the device's preset.
The measurements are in `truth/` of the directory SHARDWISE_DATA, described by its README; `--data` names another folder
with the same files, such as one with rows that nothing was fitted to. The shipped fits are of every row in `truth/`;
`--held-out` fits again to two thirds of the sizes and half of the shapes, and judges by the others.

`--runs` predicts training steps with `shardwise.planning.price_plan`: runs of torchtitan (`named`), of MPT under FSDP
(`fsdp`), and of two models in many layouts (`grid`). Software differs between sources, so each has one factor, the
median of predicted / measured; errors of times are what is left. Sources of one run have none. `--hidden` compares how
much of a step's collectives runs beside kernels.
"""

import argparse
import csv
import gzip
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from record import Record, takes_json

from shardwise import Cluster, Mesh
from shardwise.mesh import Collective, Timing

if TYPE_CHECKING:
    from published_runs import Predicted, Run

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


# -- whole runs


def compare_runs(record: Record, kinds: Sequence[str], data: Path, each: bool, picture: Path | None) -> None:
    """Runs without recomputing and with it, by source; with `each`, every run in a line of its own."""
    from published_runs import READERS, predict

    found: dict[str, list[tuple[Run, Predicted]]] = defaultdict(list)
    for kind in kinds:
        for run in READERS[kind](data):
            found[run.source].append((run, predict(run)))
            print(f"\r{sum(map(len, found.values()))} runs", end="", file=sys.stderr)
    factors = {s: float(np.median([p.seconds / r.seconds for r, p in pairs])) for s, pairs in found.items()}
    columns = {"source": "", "runs": "{:,d}", "factor": "{:.3f}", "median error": "{:.1%}", "worst": "{:.1%}"}
    columns |= {"worst, by the factor best for it": "{:.1%}"}
    for title, recomputes in (("without recomputing", False), ("with recomputing", True)):
        table = record.sheet(f"Seconds of a step {title}, by one factor for each source", columns, wide=28)
        for source, pairs in found.items():
            ratios = [p.seconds / r.seconds for r, p in pairs if r.recomputes is recomputes]
            if ratios:
                errors = *_errors(ratios, factors[source]), _least_worst(ratios)
                table.add(source, len(ratios), factors[source], *errors)
    columns = {
        "source": "",
        "runs": "{:,d}",
        "median ratio": "{:.3f}",
        "median error": "{:.1%}",
        "worst": "{:.1%}",
    }
    table = record.sheet("Memory that torch's allocator reserves, by no factor", columns, wide=28)
    for source, pairs in found.items():
        ratios = [p.bytes / r.memory for r, p in pairs if r.memory and p.bytes and not p.exceeds(r.memory)]
        if ratios:
            table.add(source, len(ratios), float(np.median(ratios)), *_errors(ratios, 1.0))
    all_pairs = [pair for pairs in found.values() for pair in pairs]
    below = [(run, made) for run, made in all_pairs if run.memory and made.exceeds(run.memory)]
    if below:
        columns = {
            "run": "",
            "layout": "`{}`",
            "execution": "",
            "least": "{:.1f} GiB",
            "published": "{:.1f} GiB",
        }
        title = "Runs published with 10 % less than parameters, states and activations take as described"
        table = record.sheet(title, columns, wide=40)
        for run, made in below:
            sizes = (size / 2**30 for size in (made.least, run.memory))
            table.add(f"{run.source}: {run.name}", str(run.layout), run.execution, *sizes)
    if "named" in kinds:
        compare_schedules(record, data)
        compare_split(record, data)
    compare_cells(record, [pair for pair in all_pairs if pair[0].cell], factors)
    if each:
        columns = {
            "run": "",
            "layout": "`{}`",
            "execution": "",
            "predicted": "{:.3f} s",
            "measured": "{:.3f} s",
        }
        columns |= {"memory": "{:.1f} GiB", "measured ": "{:.1f} GiB"}
        table = record.sheet("Every run", columns, wide=40)
        for run, made in all_pairs:
            name, layout = f"{run.source}: {run.name}", str(run.layout)
            memory = (None if size is None else size / 2**30 for size in (made.bytes, run.memory))
            table.add(name, layout, run.execution, made.seconds, run.seconds, *memory)
    if picture is not None:
        picture.write_text(
            drawn({s: [(r.seconds, p.seconds) for r, p in pairs] for s, pairs in found.items()})
        )


def compare_schedules(record: Record, data: Path) -> None:
    """How much faster a pipeline is with another schedule than with the first."""
    from published_runs import predict, schedule_runs

    runs = list(schedule_runs(data))
    if not runs:
        return
    columns = {
        "run": "",
        "layout": "`{}`",
        "predicted": "{:.2f} x",
        "measured": "{:.2f} x",
        "apart": "{:+.2f}",
    }
    table = record.sheet("Schedules of pipelines, compared with the first", columns, wide=28)
    made = [predict(run).seconds for run in runs]
    for run, seconds in zip(runs, made, strict=True):
        ratios = made[0] / seconds, runs[0].seconds / run.seconds
        table.add(run.name, str(run.layout), *ratios, ratios[0] - ratios[1])


def compare_split(record: Record, data: Path) -> None:
    """How much faster tensor parallelism is where products are split against its collectives."""
    from published_runs import LLAMA, named_runs, predict

    columns = {"run": "", "layout": "`{}`", "without": "{:.3f} s", "split": "{:.3f} s", "faster by": "{:.1%}"}
    title = "Split products, by which torchtitan's runs of 8B and 70B are 9 to 10 % faster"
    table = record.sheet(title, columns, wide=28)
    runs = [run for run in named_runs(data) if run.layout.tp > 2]
    more = replace(runs[0].layout, fsdp=32, recompute="full")
    largest = replace(runs[0], name="70B on 256", shape=LLAMA["llama3-70b"], samples=16, layout=more)
    for run in (*runs, largest):
        without, split = (
            predict(replace(run, layout=replace(run.layout, split=splits))).seconds
            for splits in (False, True)
        )
        table.add(run.name, str(replace(run.layout, split=True)), without, split, without / split - 1)


def compare_cells(
    record: Record, pairs: "Sequence[tuple[Run, Predicted]]", factors: dict[str, float]
) -> None:
    """Of runs of one model on as many devices: the errors, and how long the layout takes that is predicted to be the
    fastest, compared with that which is."""
    cells: dict[str, list[tuple[Run, Predicted]]] = defaultdict(list)
    for pair in pairs:
        cells[pair[0].cell].append(pair)
    if not cells:
        return
    columns = {"cell": "", "layouts": "{:,d}", "in pipelines": "{:,d}", "median error": "{:.1%}"}
    columns |= {
        "worst": "{:.1%}",
        "median in pipelines": "{:.1%}",
        "predicted to be the fastest": "",
        "compared with the fastest": "{:.3f}",
    }
    table = record.sheet("Seconds of a step by model and number of GPUs", columns, wide=28)
    for cell, inside in cells.items():
        ratios = [made.seconds / run.seconds for run, made in inside]
        chosen, _ = min(inside, key=lambda pair: pair[1].seconds / pair[0].tokens)
        fastest = min(run.seconds / run.tokens for run, _ in inside)
        errors = _errors(ratios, factors[chosen.source])
        apart = [ratio for (run, _), ratio in zip(inside, ratios, strict=True) if run.layout.pp > 1]
        piped = _errors(apart, factors[chosen.source])[0] if apart else None
        compared = chosen.seconds / chosen.tokens / fastest
        table.add(cell, len(inside), len(apart), *errors, piped, chosen.name, compared)


def _errors(ratios: Sequence[float], factor: float) -> tuple[float, float]:
    """The median and the largest error that a factor leaves."""
    apart = np.abs(np.array(ratios) / factor - 1)
    return float(np.median(apart)), float(apart.max())


def _least_worst(ratios: Sequence[float]) -> float:
    """The largest error that the factor leaves for which it is smallest."""
    return (max(ratios) - min(ratios)) / (max(ratios) + min(ratios))


def drawn(points: dict[str, list[tuple[float, float]]], side: int = 460) -> str:
    """Predicted over measured seconds as an SVG, with both axes logarithmic; lines are 20 % apart from equal."""
    every = [seconds for pairs in points.values() for pair in pairs for seconds in pair]
    low, high = np.log(min(every)) - 0.2, np.log(max(every)) + 0.2
    colours = (
        "#3366cc",
        "#dc3912",
        "#ff9900",
        "#109618",
        "#990099",
        "#0099c6",
        "#dd4477",
        "#66aa00",
        "#555555",
    )

    def at(seconds: float) -> float:
        return float((np.log(seconds) - low) / (high - low)) * (side - 60)

    def place(x: float, y: float) -> tuple[float, float]:
        return 50 + at(x), side - 40 - at(y)

    width = side + 200
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {side}" font-family="sans-serif">'
    ]
    lines.append(f'<rect width="{width}" height="{side}" fill="white"/>')
    for share, dash in ((1.0, ""), (1.2, "4"), (1 / 1.2, "4")):
        (x1, y1), (x2, y2) = (place(np.exp(end), np.exp(end) * share) for end in (low + 0.2, high - 0.2))
        lines.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#999" stroke-dasharray="{dash}"/>'
        )
    for tick in (0.1, 0.3, 1, 3, 10, 30, 100):
        if low < np.log(tick) < high:
            x, y = place(tick, tick)
            lines.append(
                f'<text x="{x:.1f}" y="{side - 22}" font-size="11" text-anchor="middle">{tick} s</text>'
            )
            lines.append(f'<text x="44" y="{y:.1f}" font-size="11" text-anchor="end">{tick} s</text>')
    lines.append(f'<text x="{side / 2}" y="{side - 6}" font-size="12" text-anchor="middle">measured</text>')
    lines.append('<text x="8" y="16" font-size="12">predicted / factor of the source</text>')
    for number, (source, pairs) in enumerate(points.items()):
        colour = colours[number % len(colours)]
        factor = float(np.median([predicted / measured for measured, predicted in pairs]))
        for measured, predicted in pairs:
            x, y = place(measured, predicted / factor)
            lines.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" fill-opacity="0.6">'
                f"<title>{source}: {predicted:.3f} s, measured {measured:.3f} s</title></circle>"
            )
        y = 40 + 18 * number
        lines.append(f'<circle cx="{side + 8}" cy="{y}" r="4" fill="{colour}"/>')
        lines.append(f'<text x="{side + 18}" y="{y + 4}" font-size="11">{source} (x {factor:.2f})</text>')
    return "\n".join([*lines, "</svg>\n"])


# Of the seconds of collectives of a step, the shares that ran beside kernels: Llama 3 8B, FSDP 4 x TP 2 on 8 H100,
# scheduled by torch's pass (autoresearch/EXPERIMENT_LOG.md of torchtitan, 28 May 2026). It calls gathers FSDP's. But
# what it lists as exposed (TP RS bf16, FSDP AG, FSDP RS f32, TP AR bf16: 61.5 + 53.8 + 34.7 + 2.6 ms) is all of its
# 153 ms, which leaves none for the 130 gathers of activations; kernels of all-gathers bear neither group nor dtype.
HIDDEN = {
    "gathers": ("all_gather", (0, 1), 0.309),
    "of them, of parameters": ("all_gather", (0,), None),
    "gradients reduced": ("reduce_scatter", (0,), 0.83),
    "activations reduced by tensor parallelism": ("reduce_scatter", (1,), 0.026),
}
EXPOSED = 0.115  # of the step


def compare_hidden(record: Record) -> None:
    """What runs beside calls as torch's pass schedules the program, and as the plan is, by the timeline."""
    from overlap_passes import Ran, as_one, by_torch, llama_plan, parts

    plan = llama_plan(32, Mesh.parse("fsdp=4,tp=2"))
    overlapped = llama_plan(32, plan.mesh, overlap=True)
    scheduled = Ran.of([by_torch(as_one(plan), plan)], plan)
    planned = Ran.of(parts(overlapped), overlapped)
    columns = {
        "collectives": "",
        "seconds": "{:.3f} s",
        "hidden": "{:.0%}",
        "measured": "{:.0%}",
        "apart": "{:+.0%}",
        "as the plan is": "{:.0%}",
    }
    title = "What runs beside kernels as torch's pass schedules it: Llama 3 8B, FSDP 4 x TP 2, 8 H100"
    sheet = record.sheet(title, columns, wide=42)
    for name, (kind, along, measured) in HIDDEN.items():
        hidden, seconds = scheduled.hidden(kind, along), float(np.diff(scheduled.times(kind, along)).sum())
        apart = None if measured is None else hidden - measured
        sheet.add(name, seconds, hidden, measured, apart, planned.hidden(kind, along))
    record.say(
        f"Calls wait {scheduled.exposed:.1%} of a step of {scheduled.seconds:.3f} s; {EXPOSED:.1%} was measured. "
        f"As the plan is, they wait {planned.exposed:.1%} of {planned.seconds:.3f} s."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a folder with collectives.csv and gemm_bf16.csv.gz")
    parser.add_argument("--by", default="collective", choices=["collective", "ranks", "size"])
    parser.add_argument("--held-out", action="store_true", help="fit a part of the rows, judge by the others")
    parser.add_argument("--runs", help="predict whole runs instead: named, fsdp, grid; several with commas")
    parser.add_argument("--hidden", action="store_true", help="predict how much runs beside kernels instead")
    parser.add_argument("--each", action="store_true", help="with --runs, list every run")
    parser.add_argument("--picture", type=Path, help="with --runs, draw them here, as SVG")
    takes_json(parser)
    options = parser.parse_args()
    if options.hidden:
        compare_hidden(Record(__doc__, options.json))
        return
    data = options.data or folder()
    if not (data / "collectives.csv").exists():
        print(f"no measurements: {data} is not there; name the directory with truth/ in SHARDWISE_DATA")
        return
    record = Record(__doc__, options.json)
    if options.runs:
        compare_runs(record, options.runs.split(","), data, options.each, options.picture)
        return
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
