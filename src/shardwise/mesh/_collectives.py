"""Measured collectives: reading the output of nccl-tests, and fitting curves to it.

A curve is a few pieces, latency + bytes / bandwidth each. Where one ends and the next begins is found by dynamic
programming: of all ways to cut the measured sizes into runs of at least two, the one with the smallest relative errors,
counting each further piece as much as some errors.
"""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import UsageError
from ..files import named, read_text
from ._calibrate import Calibration, Fit
from ._links import Collective, Curve, Link, Piece, with_curves

# What one more piece of a curve must save: the sum of relative errors over the samples.
PENALTY = 0.25

# A relative error above this is an outlier, and counts as this.
_OUTLIER = 0.3

# Samples of this many bytes and more say how much longer elements of one byte take.
_LARGE = 8e6


class Timing(NamedTuple):
    """One measured collective: the bytes of the whole buffer, seconds, and the bytes of an element."""

    size: float
    seconds: float
    itemsize: int = 2


class Timings(NamedTuple):
    """The timings of one collective in one group of ranks, `members` of which share a host."""

    collective: Collective
    ranks: int
    members: int
    device: str
    found: tuple[Timing, ...]


def fit_collectives(paths: Sequence[Path], calibration: Calibration) -> Calibration:
    """The cluster with collectives as measured: by files in the format of nccl-tests, one per collective and group.

    Groups on one host measure the innermost link, groups on several hosts the one outside it.
    """
    cluster, fits = calibration.cluster, list(calibration.fits)
    levels = list(cluster.levels)
    for path in paths:
        found = read_nccl_tests(path)
        depth = 0 if found.members == found.ranks else 1
        if depth >= len(levels):
            raise UsageError(
                f"{path} measures ranks on several hosts, and cluster {cluster.name!r} has only one level of links"
            )
        members = 1 if depth == 0 else found.members
        curve = fit_curve(found.collective, found.ranks, found.found, members=members)
        link = with_curves(levels[depth].link, [curve])
        levels[depth] = replace(levels[depth], link=link)
        errors = [_error(link, curve, timing) for timing in found.found]
        kind = f"{found.collective} among {found.ranks}"
        fits.append(Fit(kind, len(errors), statistics.median(errors), max(errors)))
    names = ", ".join(path.name for path in paths)
    origin = f"Collectives fitted to {names}. Otherwise: {cluster.origin or cluster.name}"
    return Calibration(replace(cluster, levels=tuple(levels), origin=origin), tuple(fits))


def _error(link: Link, curve: Curve, timing: Timing) -> float:
    sizes = np.array(timing.size)
    priced = link.times(curve.collective, sizes, curve.ranks, itemsize=timing.itemsize, members=curve.members)
    return abs(float(priced) / timing.seconds - 1)


# -- nccl-tests

_NAMES: dict[str, Collective] = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
    "sendrecv": "permute",
}
_RANK = re.compile(r"^#\s+Rank\s+\d+\s.*?\son\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s*(.*)$")
_WIDTHS = {"int8": 1, "uint8": 1, "f8e4m3": 1, "f8e5m2": 1, "half": 2, "bfloat16": 2, "double": 8}


def read_nccl_tests(path: Path) -> Timings:
    """The out-of-place times in the output of one program of nccl-tests, such as `all_gather_perf`.

    The collective is the program that the output names, or else the file's name; ranks and hosts are those it lists.
    """
    text = read_text(path)
    with named(path):
        collective = _collective(text, path.name)
        listed = [match for line in text.splitlines() if (match := _RANK.match(line))]
        if len(listed) < 2:
            raise UsageError(
                "expected the output of nccl-tests, which lists at least two ranks: "
                "'#  Rank  0 ... on host device  0 [0x07] NVIDIA H100'"
            )
        hosts = {match[1] for match in listed}
        if len(listed) % len(hosts):
            raise UsageError(f"the {len(listed)} ranks are unevenly distributed over {len(hosts)} hosts")
        found = tuple(timing for line in text.splitlines() if (timing := _timing(line)))
        if len({timing.size for timing in found}) < 2:
            raise UsageError(
                "expected times of at least two sizes, lines such as '1048576 ... 35.2 29.8 ...'"
            )
        return Timings(collective, len(listed), len(listed) // len(hosts), listed[0][2], found)


def _collective(text: str, name: str) -> Collective:
    for where in (text, name):
        found = {known for known in _NAMES if re.search(rf"\b{known}(_perf)?\b|{known}_perf", where)}
        if len(found) == 1:
            return _NAMES[found.pop()]
    raise UsageError(
        f"neither the text nor the file's name says which collective this is: name the file after one of "
        f"{', '.join(_NAMES)}"
    )


def _timing(line: str) -> Timing | None:
    """A line of the table: size, count, type, redop and root where there are such, time, algbw, busbw, #wrong, ..."""
    words = line.split()
    if len(words) < 8 or not words[0].isdigit() or not words[1].isdigit():
        return None
    numbers = [word for word in words[3:] if re.fullmatch(r"\d+\.\d+", word)]
    if not numbers or int(words[0]) == 0:
        return None
    return Timing(float(words[0]), float(numbers[0]) * 1e-6, _WIDTHS.get(words[2], 4))


# -- fitting


def fit_curve(
    collective: Collective,
    ranks: int,
    timings: Sequence[Timing],
    *,
    members: int = 1,
    penalty: float = PENALTY,
) -> Curve:
    """The curve that fits the timings of a collective in one group; those of one byte an element tell how much longer
    such elements take to add."""
    rows = np.array([tuple(timing) for timing in timings], float)
    sizes, seconds, narrow = rows[:, 0], rows[:, 1], rows[:, 2] == 1
    adds = collective in ("all_reduce", "reduce_scatter") and narrow.any() and not narrow.all()
    first = ~narrow if adds else np.full(len(rows), True)
    factor, pieces = 1.0, _pieces(sizes[first], seconds[first], penalty)
    for _ in range(4 if adds else 0):
        latency, per_byte = _at(pieces, sizes)
        large = narrow & (sizes >= _LARGE)
        if large.any():
            ratio = (seconds[large] - latency[large]) / (per_byte[large] * sizes[large])
            factor = float(np.clip(np.median(ratio), 1.0, 2.0))
        wide = latency + per_byte * sizes
        asif = np.where(narrow, seconds * wide / (latency + factor * per_byte * sizes), seconds)
        pieces = _pieces(sizes, asif, penalty)
    made = tuple(
        Piece(_rounded(above), _rounded(latency), _rounded(1 / per_byte) if per_byte else None)
        for above, latency, per_byte in pieces
    )
    return Curve(collective, ranks, made, members, _rounded(factor))


def _pieces(sizes: np.ndarray, seconds: np.ndarray, penalty: float) -> list[tuple[float, float, float]]:
    """The start, latency and seconds per byte of each piece."""
    known = np.unique(sizes)
    best: list[tuple[float, list[tuple[float, float, float]]]] = [(0.0, [])]
    for end in range(1, len(known) + 1):
        ways = []
        for begin in range(end if len(known) == 1 else end - 1):
            if not math.isfinite(best[begin][0]):
                continue
            inside = (sizes >= known[begin]) & (sizes <= known[end - 1])
            latency, per_byte, error = _line(sizes[inside], seconds[inside])
            above = 0.0
            if begin:
                above = _border(
                    best[begin][1][-1], known[begin - 1], known[begin], latency + per_byte * known[begin]
                )
            ways.append((best[begin][0] + error + penalty, [*best[begin][1], (above, latency, per_byte)]))
        best.append(min(ways, key=lambda way: way[0]) if ways else (math.inf, []))
    return best[-1][1]


def _border(before: tuple[float, float, float], last: float, first: float, seconds: float) -> float:
    """Where a piece ends: in the middle between its last size and the next piece's first, or where it takes as long as
    that."""
    _, latency, per_byte = before
    equal = (seconds - latency) / per_byte if per_byte else math.inf
    return max(last, min(math.sqrt(last * first), equal))


def _line(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float, float]:
    """Latency and seconds per byte, neither negative, with small relative errors, and the sum of these.

    Least squares, repeated with weights that make it nearly a fit of absolute errors, so that outliers do not matter.
    """
    weights = 1 / seconds
    for _ in range(10):
        ones, bytes_, total = weights, weights * sizes, weights * seconds
        a, b, c = ones @ ones, ones @ bytes_, bytes_ @ bytes_
        s, t = ones @ total, bytes_ @ total
        determinant = a * c - b * b
        latency, per_byte = -1.0, -1.0
        if determinant > 1e-9 * a * c:
            latency, per_byte = (s * c - t * b) / determinant, (t * a - s * b) / determinant
        if latency < 0:
            latency, per_byte = 0.0, t / c
        elif per_byte < 0:
            latency, per_byte = s / a, 0.0
        errors = np.abs((latency + per_byte * sizes) / seconds - 1)
        weights = 1 / seconds / np.sqrt(np.maximum(errors, 0.02))
    return float(latency), float(per_byte), float(np.minimum(errors, _OUTLIER).sum())


def _at(pieces: Sequence[tuple[float, float, float]], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    above, latency, per_byte = map(np.array, zip(*pieces, strict=True))
    which = np.searchsorted(above[1:], sizes)
    return latency[which], per_byte[which]


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
