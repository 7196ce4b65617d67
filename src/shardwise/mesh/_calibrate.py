"""`calibrate`: a `Cluster` for the current device, fitted to measured kernel times.

The price of a kernel has two terms: its work at a fraction of the peak rate, and either a fixed time or, for
attention, the bytes that it moves. Both are fitted to the samples of its kind by least squares of the relative errors.
Where the device has a law of matrix products, the law stays, and its rate in each dtype is fitted.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..documents import Field
from ..errors import UsageError
from ..files import read_document
from ..progress import Progress, silent
from ._cluster import Cluster, Level
from ._device import ARITHMETIC, KERNELS, Device, dtype_names
from ._matmul import Matmul
from ._measure import FORMAT, MeasuredBlock, Sample, Start, measure

# Kinds whose memory traffic does not overlap with their arithmetic.
_EXPOSED = ("attention", "attention_backward")


@dataclass(frozen=True)
class Fit:
    """How well the prices of one kind (of kernels, or a collective in a group) match the samples: median and largest
    relative error."""

    kind: str
    samples: int
    typical: float
    worst: float


@dataclass(frozen=True)
class Calibration:
    """A cluster and how well its prices match the samples it was fitted to."""

    cluster: Cluster
    fits: tuple[Fit, ...]

    def __str__(self) -> str:
        device = self.cluster.device
        lines = [
            f"{device.name}: {device.memory / 1e9:.0f} GB, {device.launch * 1e6:.3g} us to launch a kernel",
        ]
        for execution, (step, each) in device.host.items():
            what = "kernel" if execution == "compiled" else "call"
            lines.append(f"the host, {execution}: {step * 1e3:.2g} ms a step, {each * 1e6:.3g} us a {what}")
        kernels = [fit for fit in self.fits if fit.kind in KERNELS]
        if kernels:
            head = f"{'kind':<18} {'samples':>7} {'reaches':>25} {'fixed':>8} {'error':>6} {'worst':>6}"
            lines.append(head)
        for fit in kernels:
            fixed = device.startup.get(fit.kind, 0.0) * 1e6
            lines.append(
                f"{fit.kind:<18} {fit.samples:>7} {_reached(device, fit.kind):>25} {fixed:>5.2g} us "
                f"{fit.typical:>6.0%} {fit.worst:>6.0%}"
            )
        lines += [
            f"{fit.kind}: {fit.samples} sizes, error {fit.typical:.1%}, worst {fit.worst:.0%}"
            for fit in self.fits
            if fit.kind not in KERNELS
        ]
        return "\n".join(lines)


def calibrate(device: str = "cuda", *, links: str | None = None, progress: Progress = silent) -> Calibration:
    """Measure the current device, `cuda` or `cpu`: about two minutes on a GPU, one on a CPU.

    `links` is the preset that provides the links of the cluster: by default the one for this device, else `h100` for a
    GPU and `laptop` for a CPU. With several GPUs the link between them is measured.
    """
    if device not in ("cuda", "cpu"):
        raise UsageError(f"cannot measure device {device!r}: use cuda or cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch finds no GPU: use --device cpu, or --samples measured on another machine")
    return fit(measure(device, progress=partial(progress, "measuring")), links=links)


def fit_file(path: Path, *, links: str | None = None) -> Calibration:
    """As `calibrate`, from samples written by `_measure.py` on another machine."""
    return read_document(path, partial(fit, links=links))


def fit(document: Any, *, links: str | None = None) -> Calibration:
    """The cluster that fits the samples."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"these are not kernel samples: their 'format' is not {FORMAT!r}")
    required = ("format", "device", "memory", "devices", "samples")
    fields = Field(document).object(required, ("torch", "host"))
    samples = [_sample(sample) for sample in fields["samples"].items()]
    name, devices = fields["device"].text(), fields["devices"].integer(least=1)
    memory = fields["memory"].number(1e3, 1e21)
    if lacking := {"launch", "matmul", "memory"} - {sample.kind for sample in samples}:
        raise UsageError(
            f"the samples have no {' and no '.join(sorted(lacking))} kernels, which are needed to fit a device"
        )
    known = next((p for p in Cluster.presets() if p in name.lower()), None)
    plain = _peaks(name, known, memory, samples)
    device = _fitted(plain, samples)
    if "host" in fields:
        device = replace(
            device, host={**device.host, **host_of([_start(start) for start in fields["host"].items()])}
        )
    default = "laptop" if name == "CPU" else "h100"
    levels = Cluster.preset(links or known or default).levels
    between = [s for s in samples if s.kind == "link"]
    if between:
        taken = [s.seconds for s in between]
        per_byte, seconds = _two_terms([s.bytes for s in between], [1.0] * len(taken), taken, taken)
        link = replace(levels[0].link, bandwidth=1 / per_byte, latency=seconds)
        levels = (Level(link, devices), *levels[-1:])
    kinds = sorted({s.kind for s in samples} - {"launch", "link"})
    fits = tuple(_quality(kind, device, [s for s in samples if s.kind == kind]) for kind in kinds)
    return Calibration(Cluster(device.name, device, levels), fits)


def _sample(document: Field) -> Sample:
    fields = document.object(("kind", "name", "dtype", "flops", "bytes", "seconds", "product"))
    kind = fields["kind"].one_of(("launch", *KERNELS, "link"))
    product = None
    if kind == "matmul":
        rows, inner, columns = (size.integer(1, 10**9) for size in fields["product"].items(3))
        product = rows, inner, columns
    return Sample(
        kind,
        fields["name"].text(),
        fields["dtype"].one_of(dtype_names()),
        fields["flops"].integer(1 if kind in (*ARITHMETIC, "strided") else 0, 10**21),
        fields["bytes"].integer(0 if kind == "launch" else 1, 10**21),
        fields["seconds"].number(1e-9, 3600),
        product,
    )


def host_of(starts: Sequence[Start]) -> dict[str, tuple[float, float]]:
    """The seconds that a host needs for a step, and for each call or compiled kernel of it, by execution."""
    found: dict[str, tuple[float, float]] = {}
    for execution in MeasuredBlock.CALLS:
        own = [start for start in starts if start.execution == execution]
        if own:
            taken = [start.seconds for start in own]
            each, step = _two_terms([start.calls for start in own], [1.0] * len(own), taken, taken)
            found[execution] = _rounded(step), _rounded(each)
    return found


def _start(document: Field) -> Start:
    fields = document.object(("execution", "calls", "seconds"))
    execution = fields["execution"].one_of(tuple(MeasuredBlock.CALLS))
    return Start(execution, fields["calls"].integer(1, 10**9), fields["seconds"].number(1e-9, 3600))


def predicted(device: Device, sample: Sample) -> float:
    """The price of a sampled kernel, in seconds, as planning computes it."""
    if sample.product is not None and device.matmul is not None:
        rows, inner, columns = sample.product
        dtype = getattr(torch, sample.dtype)
        return device.product_seconds(1, rows, columns, inner, dtype, sample.bytes)
    return device.seconds(sample.kind, sample.flops, sample.bytes, sample.dtype, sample.flops)


def _peaks(name: str, known: str | None, memory: float, samples: Sequence[Sample]) -> Device:
    """The vendor's peaks where there is a preset of the device, else the best measured rates."""
    if known is not None:
        preset = Cluster.preset(known).device
        return replace(preset, memory=memory)
    rates: dict[str, float] = {}
    for sample in samples:
        if sample.kind == "matmul":
            rates[sample.dtype] = max(rates.get(sample.dtype, 0.0), sample.flops / sample.seconds)
    bandwidth = max(s.bytes / s.seconds for s in samples if s.kind == "memory")
    return Device(name.lower().replace(" ", "-"), rates, memory, bandwidth)


def _fitted(device: Device, samples: Sequence[Sample]) -> Device:
    launch = _rounded(min(s.seconds for s in samples if s.kind == "launch"))
    efficiency = dict(device.efficiency)
    startup: dict[str, float] = {}
    exposed: dict[str, float] = {}
    elements, law = device.elements, device.matmul
    for kind in sorted({s.kind for s in samples} - {"launch", "link"}):
        found = [s for s in samples if s.kind == kind]
        if kind == "matmul" and law is not None:
            rates = {d: _rate(device, law, d, found) for d in dict.fromkeys(s.dtype for s in found)}
            law = replace(law, dtypes={**law.dtypes, **rates})
            continue
        beyond = [max(s.seconds - launch, 0.0) for s in found]
        if not any(beyond):
            continue  # too small to measure: the efficiency stays as it was
        moved = [s.bytes / device.memory_bandwidth for s in found]
        if kind in ARITHMETIC:
            done = [s.flops / device.rate(s.dtype) for s in found]
        else:
            done = [float(s.flops) for s in found] if kind == "strided" else moved
        other = moved if kind in _EXPOSED else [1.0] * len(found)
        per_work, per_other = _two_terms(done, other, beyond, [s.seconds for s in found])
        if kind == "strided":
            elements = _rounded(1 / per_work)
        else:
            efficiency[kind] = _rounded(1 / per_work)
        if kind not in _EXPOSED:
            startup[kind] = _rounded(per_other)
        elif per_other > 0:
            exposed[kind] = _rounded(1 / per_other)
    return replace(
        device,
        efficiency=efficiency,
        launch=launch,
        startup=startup,
        exposed=exposed,
        elements=elements,
        tiled_heads=device.name != "cpu",
        matmul=law,
    )


def _rate(device: Device, law: Matmul, dtype: str, samples: Sequence[Sample]) -> float:
    """The share of peak in a dtype, relative to that of the law's tiles, with the smallest median error."""
    mine = [sample for sample in samples if sample.dtype == dtype]

    def error(rate: float) -> float:
        scaled = replace(device, matmul=replace(law, dtypes={dtype: rate}))
        return statistics.median(abs(math.log(predicted(scaled, s) / s.seconds)) for s in mine)

    return min((percent / 100 for percent in range(30, 201)), key=error)


def _two_terms(
    first: Sequence[float], second: Sequence[float], total: Sequence[float], scales: Sequence[float]
) -> tuple[float, float]:
    """Factors f > 0 and g >= 0 that fit f * first + g * second to the total, by least squares of errors over scales."""

    def product(a: Sequence[float], b: Sequence[float]) -> float:
        return sum(x * y / scale**2 for x, y, scale in zip(a, b, scales, strict=True))

    ff, fs, ss = product(first, first), product(first, second), product(second, second)
    ft, st = product(first, total), product(second, total)
    determinant = ff * ss - fs * fs
    if determinant > 1e-9 * ff * ss:
        f, g = (ft * ss - st * fs) / determinant, (st * ff - ft * fs) / determinant
        if f > 0 and g >= 0:
            return f, g
    return ft / ff, 0.0


def _quality(kind: str, device: Device, samples: Sequence[Sample]) -> Fit:
    errors = [abs(predicted(device, s) / s.seconds - 1) for s in samples]
    return Fit(kind, len(samples), statistics.median(errors), max(errors))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _reached(device: Device, kind: str) -> str:
    if kind == "strided":
        return f"{(device.elements or 0) / 1e9:.3g} G elements/s"
    if kind == "matmul" and device.matmul is not None:
        rate = 2 * 8192**3 / device.product_seconds(1, 8192, 8192, 8192, torch.bfloat16)
        return f"{rate / 1e12:.3g} Tflop/s at 8192"
    share = device.share(kind)
    if kind not in ARITHMETIC:
        return f"{device.memory_bandwidth * share / 1e9:.4g} GB/s, {share:.0%} of peak"
    dtype = "bfloat16" if "bfloat16" in device.flops else "float32"
    return f"{device.rate(dtype) * share / 1e12:.3g} Tflop/s, {share:.0%} of peak"
