"""Fits the shipped prices of links and matrix products to published measurements, and writes them into the presets.

    SHARDWISE_DATA=../shared/data python benchmarks/fit_presets.py [--only nvlink4,h100]

Collectives are fitted by `shardwise.mesh.fit_curve`, as by `shardwise calibrate --nccl`. Matrix products are fitted
by least squares of relative errors (damped, with weights that make outliers matter little), from a start that states
which tiles there are. `benchmarks/truth.py` says how well either matches.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from truth import collective_rows, product_rows

from shardwise.mesh import Cluster, Collective, Curve, Matmul, Piece, Tile, fit_curve

PRESETS = Path(__file__).parents[1] / "src" / "shardwise" / "mesh" / "presets"

# The devices whose measurements a link is fitted to. Links of H100 and H200 hosts are the same.
LINKS = {"nvlink3": ("a100",), "nvlink4": ("h100", "h200"), "nvlink5": ("b200",), "pcie4": ("l40s",)}

# Bus bandwidths of 256 MB over EFA on so many hosts of 8 H100, in GB/s: of gathers and scatters, and of all-reduce. No
# other size was published. What it takes longer on more hosts is taken for latency, since it grows in proportion to the
# ranks (by 32 us for each), as a ring's latency does: bandwidths are those without it. Smaller buffers have part
# of it: the share in `ramp` of efa.json is that of 0, 0.15, 0.3, 0.5 and 1 which fits the layouts of the 1B model in
# layouts_h100.csv best. Errors of the 8B model were known when it was chosen.
EFA_HOSTS = {2: (185, 362), 4: (119, 160), 8: (69, 100), 16: (55, 85), 32: (28, 65)}
EFA_BANDWIDTHS = (284e9, 370e9)
EFA_SIZE, EFA_LAUNCH = 256e6, 3e-5


def efa_curves() -> Iterable[Curve]:
    for collective in ("all_gather", "reduce_scatter", "all_reduce"):
        sums = collective == "all_reduce"
        for hosts, published in EFA_HOSTS.items():
            ranks = 8 * hosts
            moved = (1 + sums) * (ranks - 1) / ranks  # bytes over the bus for each of the buffer
            bandwidth = EFA_BANDWIDTHS[sums] / moved
            latency = EFA_SIZE * moved / (published[sums] * 1e9) - EFA_SIZE / bandwidth
            piece = Piece(0, _rounded(max(latency, EFA_LAUNCH)), _rounded(bandwidth))
            yield Curve(collective, ranks, (piece,), members=8)


def _start(processors: int, tiles: Iterable[tuple[int, int, float, float]], **others: float) -> Matmul:
    """Where the fit of a law begins."""
    return Matmul(processors=processors, tiles=tuple(Tile(*t) for t in tiles), throttle=0.05, **others)


HOPPER = _start(
    132,
    [
        *((192, 128, 0.9, 1.3e-6), (128, 64, 0.8, 1.2e-6), (64, 128, 0.88, 5e-7)),
        *((64, 64, 0.65, 3e-7), (64, 32, 0.4, 1e-7)),
    ],
    **{"smooth": 0.95, "throttle_after": 4e-4, "cache": 36e6, "split_memory": 0.47},
    **{"launch": 2.7e-6, "memory": 0.86, "cached": 2.5, "overlapped": 0.85, "split": 2e-6},
)
START = {
    "a100": _start(
        108,
        [
            *((128, 256, 0.95, 4e-6), (128, 128, 0.85, 3e-6), (128, 64, 0.7, 2e-6)),
            *((64, 64, 0.6, 1e-6), (64, 32, 0.25, 2e-7)),
        ],
        **{"smooth": 0.05, "throttle_after": 7e-4, "cache": 27e6, "split_memory": 1.0},
        **{"launch": 2.6e-6, "memory": 0.8, "cached": 2.5, "overlapped": 0.9, "split": 2e-6},
    ),
    "b200": _start(
        148,
        [
            *((256, 256, 0.9, 1.2e-6), (128, 64, 0.77, 4e-7), (64, 128, 0.83, 2e-7)),
            *((64, 64, 0.59, 1.4e-7), (64, 32, 0.32, 5e-8)),
        ],
        **{"smooth": 0.7, "throttle_after": 2.5e-5, "cache": 60e6, "split_memory": 0.3},
        **{"launch": 2.1e-6, "memory": 0.88, "cached": 1.2, "overlapped": 0.6, "split": 2.4e-6},
    ),
    "h100": HOPPER,
    "h200": HOPPER,
}

# The share of peak by dtype, relative to that of the tiles: `shardwise calibrate` on results/h200_samples.json, where
# products in bfloat16 were a little faster than those that the tiles are fitted to.
DTYPES = {"float16": 0.98, "float32": 0.94, "float64": 1.11}
DTYPES_H200 = {**DTYPES, "bfloat16": 1.01}


def link_curves(name: str) -> list[Curve]:
    rows = [row for row in collective_rows() if row.device in LINKS[name]]
    collectives: tuple[Collective, ...] = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    made = []
    for collective in collectives:
        for ranks in sorted({row.ranks for row in rows}):
            found = [row.timing for row in rows if (row.collective, row.ranks) == (collective, ranks)]
            made.append(fit_curve(collective, ranks, found))
    return made


def matmul_law(name: str, shapes: np.ndarray, seconds: np.ndarray) -> Matmul:
    """The law that fits the measured products of one device, given by batch, rows, columns and inner dim."""
    device, start = Cluster.preset(name).device, START[name]
    peak, bandwidth = device.rate("bfloat16"), device.memory_bandwidth
    few = np.random.default_rng(0).permutation(len(shapes))[:6000]
    shapes, seconds = shapes[few], seconds[few]
    _, rows, columns, inner = shapes.T
    moved = 2 * (rows * columns + rows * inner + columns * inner)
    before = _vector(start)

    def errors(vector: np.ndarray) -> np.ndarray:
        predicted = _law(start, vector).times(shapes, peak, bandwidth, moved)
        return np.concatenate([np.log(predicted / seconds), (vector - before) * 1.5 / np.sqrt(len(seconds))])

    law = _law(start, _least(errors, before))
    tiles = tuple(Tile(t.rows, t.columns, _rounded(t.share), _rounded(t.startup)) for t in law.tiles)
    numbers = {part: _rounded(getattr(law, part)) for part in (*_LOGS, *_ODDS)}
    return Matmul(
        processors=law.processors, tiles=tiles, dtypes=DTYPES_H200 if name == "h200" else DTYPES, **numbers
    )


_LOGS = ("launch", "memory", "cached", "cache", "split", "split_memory", "throttle", "throttle_after")
_ODDS = ("smooth", "overlapped")


def _vector(law: Matmul) -> np.ndarray:
    """The numbers of a law, without limits: logarithms, and those of the odds of fractions."""
    odds = [np.log(value / (1 - value)) for value in (getattr(law, part) for part in _ODDS)]
    tiles = np.log([(tile.share, tile.startup) for tile in law.tiles]).T.ravel()
    return np.concatenate([np.log([getattr(law, part) for part in _LOGS]), odds, tiles])


def _law(like: Matmul, vector: np.ndarray) -> Matmul:
    logs, odds, tiles = np.split(vector, [len(_LOGS), len(_LOGS) + len(_ODDS)])
    shares, startups = np.exp(tiles).reshape(2, -1)
    numbers = dict(zip(_LOGS, np.exp(logs).tolist(), strict=True))
    numbers |= dict(zip(_ODDS, (1 / (1 + np.exp(-odds))).tolist(), strict=True))
    changed = tuple(
        Tile(tile.rows, tile.columns, float(share), float(startup))
        for tile, share, startup in zip(like.tiles, shares, startups, strict=True)
    )
    return Matmul(processors=like.processors, tiles=changed, **numbers)


def _least(errors: Callable[[np.ndarray], np.ndarray], vector: np.ndarray, scale: float = 0.05) -> np.ndarray:
    """Levenberg and Marquardt's method, for a sum that grows with the square of small and with large errors."""

    def total(found: np.ndarray) -> float:
        return float(np.sum(np.sqrt(1 + (found / scale) ** 2) - 1))

    damping, found = 1e-2, errors(vector)
    for _ in range(40):
        steps = 1e-3 * np.eye(len(vector))
        slopes = np.stack([(errors(vector + step) - errors(vector - step)) / 2e-3 for step in steps], 1)
        weights = 1 / np.sqrt(1 + (found / scale) ** 2)
        matrix, gradient = slopes.T @ (weights[:, None] * slopes), slopes.T @ (weights * found)
        for _ in range(6):
            damped = matrix + damping * np.diag(np.diag(matrix) + 1e-9)
            trial = vector - np.clip(np.linalg.solve(damped, gradient), -0.5, 0.5)
            tried = errors(trial)
            if total(tried) < total(found):
                break
            damping *= 4
        else:
            return vector
        gained = 1 - total(tried) / total(found)
        vector, found, damping = trial, tried, damping / 3
        if gained < 1e-4:
            return vector
    return vector


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _save(path: Path, document: dict[str, Any]) -> None:
    """JSON with the innermost lists on one line each."""
    text = json.dumps(document, indent=1)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    path.write_text(text + "\n")


def _without_defaults(curve: Curve) -> dict[str, Any]:
    known = {part.name: part.default for part in fields(curve)}
    return {name: value for name, value in asdict(curve).items() if value != known[name]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join([*LINKS, "efa", *START]))
    for name in parser.parse_args().only.split(","):
        folder = "devices" if name in START else "links"
        path = PRESETS / folder / f"{name}.json"
        document = json.loads(path.read_text())
        if name == "efa":
            document["measured"] = [_without_defaults(curve) for curve in efa_curves()]
        elif name in LINKS:
            document["measured"] = [_without_defaults(curve) for curve in link_curves(name)]
        else:
            rows = [row for row in product_rows() if row.device == name]
            shapes = np.array([row.shape for row in rows], float)
            document["matmul"] = asdict(matmul_law(name, shapes, np.array([row.seconds for row in rows])))
            if name == "h100":  # h100-meta is the same chip at a lower clock, which its peaks say
                for same in ("h100-meta", "h100-efa"):
                    other = PRESETS / "devices" / f"{same}.json"
                    _save(other, json.loads(other.read_text()) | {"matmul": document["matmul"]})
        _save(path, document)
        print(f"written to {path.relative_to(PRESETS.parents[3])}", flush=True)


if __name__ == "__main__":
    main()
