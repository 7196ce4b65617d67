"""Kernel times on the current device: the samples that `calibrate` fits a `Device` to.

Every kind of kernel is run at several sizes, back to back, so that device time is measured and not host time. This
file imports only torch and can be run as a script on machines where this package is not installed:

    python src/shardwise/mesh/_measure.py --device cuda --out samples.json
    shardwise calibrate --samples samples.json --out cluster.json
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FORMAT = "shardwise.samples/2"


@dataclass(frozen=True)
class Sample:
    """One call: its floating-point operations, bytes read and written, and measured seconds.

    Kernels with little arithmetic count one operation per element, and attention on a GPU counts operations with the
    head dim `worked_head`. The kinds are those of `Device.efficiency`, and `launch` (an almost empty kernel),
    `strided` (`Device.elements`), `link` (a copy from one GPU to another). A matrix product has its rows, inner dim and
    columns.
    """

    kind: str
    name: str
    dtype: str
    flops: int
    bytes: int
    seconds: float
    product: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Case:
    """A call to be timed: `make` returns new arguments for `call`."""

    kind: str
    name: str
    dtype: torch.dtype
    flops: int
    bytes: int
    make: Callable[[], tuple[Any, ...]]
    call: Callable[..., Any]
    product: tuple[int, int, int] | None = None

    def sample(self, seconds: float) -> Sample:
        dtype = str(self.dtype).removeprefix("torch.")
        return Sample(self.kind, self.name, dtype, self.flops, self.bytes, seconds, self.product)


@dataclass(frozen=True)
class Start:
    """What the host needs to start a step of so many calls (views among them) or, compiled, kernels."""

    execution: str
    calls: int
    seconds: float


def measure(
    device: str = "cuda",
    scale: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    measured: Iterable["Case"] | None = None,
) -> dict[str, Any]:
    """Samples of every kind of kernel, with the device's name and memory.

    `scale` multiplies the work of each case: by default 1 on a GPU and a thousandth on a CPU. `progress` is called
    with the number of measured cases and their total; `measured` replaces the default cases.
    """
    if scale is None:
        scale = 1.0 if device == "cuda" else 1e-3
    timer = _Timer(device)
    every, samples = list(cases(device, scale) if measured is None else measured), []
    for c in every:
        samples.append(c.sample(timer.seconds(c)))
        if progress is not None:
            progress(len(samples), len(every))
    return {
        "format": FORMAT,
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "devices": torch.cuda.device_count() if device == "cuda" else 1,
        "memory": _memory(device),
        "torch": torch.__version__,
        "samples": [asdict(s) for s in samples],
        "host": [asdict(start) for start in starts()] if device == "cuda" else [],
    }


def starts() -> list[Start]:
    """Steps of blocks so small that the GPU always waits for the host, in turns."""
    steps: dict[tuple[str, int], Callable[[], None]] = {}
    for execution in MeasuredBlock.CALLS:
        for layers in (1, 6):
            module = nn.Sequential(*(MeasuredBlock() for _ in range(layers))).to("cuda", torch.bfloat16)
            x = torch.randn(1, 128, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            call = module if execution == "eager" else torch.compile(module, dynamic=False)
            tangent = torch.randn_like(x)

            def step(call: Any = call, module: Any = module, x: Any = x, tangent: Any = tangent) -> None:
                call(x).backward(tangent)
                for tensor in (*module.parameters(), x):
                    tensor.grad = None

            steps[execution, layers] = step
    rounds = [{which: _host_seconds(step) for which, step in steps.items()} for _ in range(13)]
    return [
        Start(execution, layers * MeasuredBlock.CALLS[execution], seconds)
        for execution, layers in steps
        for seconds in [statistics.median(each[execution, layers] for each in rounds[1:])]
    ]


def _host_seconds(step: Callable[[], None], steps: int = 20) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps


class MeasuredBlock(nn.Module):
    """A transformer block, for its mix of calls: so many of a captured graph and kernels of a compiled one."""

    CALLS: ClassVar = {"eager": 135, "compiled": 35}
    turns: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(512) for _ in range(2))
        sizes = ((512, 512), (512, 256), (512, 256), (512, 512), (512, 1024), (512, 1024), (1024, 512))
        self.projections = nn.ModuleList(nn.Linear(*size, bias=False) for size in sizes)
        self.register_buffer("turns", torch.rand(2, 128, 128))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value, mixed, gate, up, down = self.projections
        h = self.norms[0](x)
        q, k, v = (p(h).unflatten(-1, (-1, 128)).transpose(1, 2) for p in (query, key, value))
        attended = F.scaled_dot_product_attention(
            self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True
        )
        x = x + mixed(attended.transpose(1, 2).flatten(2))
        h = self.norms[1](x)
        return x + down(F.silu(gate(h)) * up(h))

    def turned(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self.turns[0] + torch.cat([-second, first], -1) * self.turns[1]


def cases(device: str, scale: float = 1.0) -> Iterator[Case]:
    """All measured cases. The sizes are spread so that the fit interpolates between them."""
    random = _Random(device)
    short = (torch.bfloat16, torch.float16) if device == "cuda" else (torch.bfloat16,)
    yield Case("launch", "neg 8", torch.float32, 0, 0, lambda: (random(8, dtype=torch.float32),), torch.neg)
    for dtype in (*short, torch.float32, torch.float64):
        yield from _matmuls(random, dtype, scale)
    for dtype in (torch.bfloat16, torch.float32):
        yield from _elementwise(random, dtype, scale)
        yield from _strided(random, dtype, scale)
        yield from _reductions(random, dtype, scale)
    yield from _attention(random, torch.bfloat16, scale)
    if device == "cuda" and torch.cuda.device_count() > 1:
        yield from _links(random)


@dataclass(frozen=True)
class _Random:
    device: str

    def __call__(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(dtype)

    def several(
        self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype
    ) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: tuple(self(*shape, dtype=dtype) for shape in shapes)


class _Timer:
    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        # Arguments differ from call to call, so that they are read from memory and not from the cache.
        self.cache = torch.cuda.get_device_properties(0).L2_cache_size if self.cuda else 32 * 2**20

    def seconds(self, case: Case) -> float:
        """The median over a few rounds of back-to-back calls.

        Rounds are short with pauses between them, so that the device keeps the clock rate of a mixed workload.
        """
        sets = 1 if case.bytes == 0 else max(1, min(16, math.ceil(3 * self.cache / case.bytes)))
        given = [case.make() for _ in range(sets)]
        once, host = self._round(case.call, given, 3, 0.001)
        calls = max(3, min(200, int(0.004 / max(once, 1e-7))))
        rounds = [self._round(case.call, given, calls, 2 * calls * host)[0] for _ in range(5)]
        return statistics.median(rounds)

    def _round(
        self, call: Callable[..., Any], given: Sequence[tuple[Any, ...]], calls: int, start_after: float
    ) -> tuple[float, float]:
        """Seconds of a call on the device, and on the host to launch it.

        A GPU waits for `start_after` seconds before it begins, so that the host is always ahead of it.
        """
        if self.cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            time.sleep(0.01)
            torch.cuda._sleep(int(2e9 * start_after))  # clock cycles
            start.record()
        begun = time.perf_counter()
        for i in range(calls):
            call(*given[i % len(given)])
        host = (time.perf_counter() - begun) / calls
        if not self.cuda:
            return host, host
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3 / calls, host


def _matmuls(random: _Random, dtype: torch.dtype, scale: float) -> Iterator[Case]:
    """Products as in a linear layer, its input gradient and its weight gradient."""
    shapes = [
        (1024, 1024, 1024),
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (4096, 1024, 4096),
        (8192, 4096, 1024),
        (16384, 2048, 6144),
        (2048, 6144, 2048),
    ]
    if dtype.itemsize > 2:
        shapes = [(n, k, m) for n, k, m in shapes if n * k * m <= 4096**3]
    for shape in shapes:
        n, k, m = _scaled(shape, scale ** (1 / 3))
        moved = (n * k + k * m + n * m) * dtype.itemsize
        forms: list[tuple[str, Any, Any]] = [
            ("x w'", [(n, k), (m, k)], lambda x, w: x @ w.t()),
            ("x w", [(n, k), (k, m)], lambda x, w: x @ w),
            ("x' w", [(k, n), (k, m)], lambda x, w: x.t() @ w),
        ]
        for form, given, call in forms:
            make = random.several(given, dtype)
            name, flops = f"{form} {n}x{k}x{m}", 2 * n * k * m
            yield Case("matmul", name, dtype, flops, moved, make, call, (n, k, m))


def _elementwise(random: _Random, dtype: torch.dtype, scale: float) -> Iterator[Case]:
    """Elementwise kernels on contiguous tensors."""
    size = dtype.itemsize
    for exponent in range(18, 30, 2):
        shape = _scaled((2**exponent // 2048, 2048), math.sqrt(scale))
        count = math.prod(shape)
        calls: list[tuple[str, Any, int, int]] = [
            ("mul", torch.mul, 2, 3 * size),
            ("neg", torch.neg, 1, 2 * size),
            ("silu", F.silu, 1, 2 * size),
            ("clone", torch.clone, 1, 2 * size),
            ("narrowed", lambda x: x.to(torch.bfloat16), 1, size + 2),
        ]
        for name, call, inputs, each in calls[: 5 if size > 2 else 4]:
            make = random.several([shape] * inputs, dtype)
            yield Case("memory", f"{name} {_by(shape)}", dtype, count, count * each, make, call)


def _strided(random: _Random, dtype: torch.dtype, scale: float) -> Iterator[Case]:
    """Kernels that compute the address of each element: broadcasts, permuted tensors, widening casts."""
    size = dtype.itemsize
    for batch, rows, heads, width in ((2, 512, 16, 64), (2, 2048, 16, 128), (4, 4096, 32, 128)):
        rows, width = _scaled((rows, width), math.sqrt(scale))
        shape = (batch, rows, heads, width)
        count = math.prod(shape)
        column = (batch, rows, heads, 1)
        calls: list[tuple[str, Any, list[tuple[int, ...]], int]] = [
            ("by a row", torch.mul, [shape, (width,)], 2 * size),
            ("by a column", torch.mul, [shape, column], 2 * size),
            ("turned by a table", lambda x, t: x.transpose(1, 2) * t, [shape, (rows, width)], 2 * size),
            ("turned copy", lambda x: x.transpose(1, 2).contiguous(), [shape], 2 * size),
            (
                "turned sum",
                lambda x, y: x.transpose(1, 2) + y.view(*x.transpose(1, 2).shape),
                [shape] * 2,
                3 * size,
            ),
            ("spread", lambda x, c: c.expand_as(x) / 2, [shape, column], size),
            ("half", lambda x: -x.chunk(2, -1)[0], [shape], size),
            ("halves joined", lambda x: torch.cat(x.transpose(1, 2).chunk(2, -1), -1), [shape], 2 * size),
            ("widened", lambda x: x.to(torch.float32), [shape], size + 4),
        ]
        for name, call, given, each in calls if size == 2 else calls[:-1]:
            done = count // 2 if name == "half" else count
            make = random.several(given, dtype)
            yield Case("strided", f"{name} {_by(shape)}", dtype, done, count * each, make, call)


def _reductions(random: _Random, dtype: torch.dtype, scale: float) -> Iterator[Case]:
    """Kernels in which each output depends on many inputs: sums, means and normalisations."""
    size = dtype.itemsize
    for rows, width in ((2048, 1024), (4096, 4096), (16384, 2048), (32768, 4096)):
        rows, width = _scaled((rows, width), math.sqrt(scale))
        count = rows * width
        whole, row = (rows, width), (width,)
        calls: list[tuple[str, Any, list[tuple[int, ...]], int]] = [
            ("sum of columns", lambda x: x.sum(0), [whole], size),
            ("mean of rows", lambda x: x.mean(-1, keepdim=True), [whole], size),
            ("softmax", lambda x: x.softmax(-1), [whole], 2 * size),
            ("layer norm", lambda x, w: F.layer_norm(x, w.shape, w, w), [whole, row], 2 * size),
        ]
        for name, call, given, each in calls:
            make = random.several(given, dtype)
            yield Case("reduction", f"{name} {rows}x{width}", dtype, count, count * each, make, call)
        make = _NormBackward(random, (rows, width), dtype)
        yield Case(
            "reduction", f"norm backward {rows}x{width}", dtype, count, 3 * count * size, make, _norm_backward
        )


@dataclass(frozen=True)
class _NormBackward:
    random: _Random
    shape: tuple[int, int]
    dtype: torch.dtype

    def __call__(self) -> tuple[Any, ...]:
        grad, x = (self.random(*self.shape, dtype=self.dtype) for _ in range(2))
        weight = self.random(self.shape[1], dtype=self.dtype)
        return grad, x, weight, *torch.native_layer_norm(x, self.shape[1:], weight, weight, 1e-5)[1:]


def _norm_backward(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Any:
    size, wanted = weight.shape, [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(grad, x, size, mean, rstd, weight, weight, wanted)


def worked_head(size: int) -> int:
    """The head dim that attention on a GPU effectively computes with: a multiple of 64, and at least 96, since below
    that the exponentials of the softmax take longer than the matrix products."""
    return max(96, size + -size % 64)


def _attention(random: _Random, dtype: torch.dtype, scale: float) -> Iterator[Case]:
    """Fused attention, and its backward alone: batch, query heads, key heads, positions, head dim."""
    shapes = [
        (8, 16, 16, 512, 64),
        (4, 16, 16, 1024, 128),
        (2, 32, 32, 2048, 64),
        (4, 32, 8, 2048, 128),
        (1, 32, 32, 4096, 128),
        (1, 16, 4, 8192, 64),
        (1, 16, 16, 16384, 128),
    ]
    for batch, heads, groups, positions, size in shapes:
        (positions,) = _scaled((positions,), math.sqrt(scale))
        many, few = (batch, positions, heads, size), (batch, positions, groups, size)
        for causal in (False, True):
            given = _Attention(random, many, few, dtype, causal)
            pairs = positions * (positions + 1) // 2 if causal else positions**2
            worked = worked_head(size) if random.device == "cuda" else size
            product = 2 * batch * heads * pairs * worked
            big, small = math.prod(many) * dtype.itemsize, math.prod(few) * dtype.itemsize
            name = f"{'causal' if causal else 'full'} {batch}x{heads}/{groups}x{positions}x{size}"
            forward, backward = 2 * (big + small), 4 * (big + small)
            yield Case("attention", name, dtype, 2 * product, forward, given, _attend)
            yield Case("attention_backward", name, dtype, 5 * product, backward, given, _attend_backward)


@dataclass(frozen=True)
class _Attention:
    """Arguments of attention: queries, keys, values, output and its gradient, with heads adjacent in memory."""

    random: _Random
    many: tuple[int, ...]
    few: tuple[int, ...]
    dtype: torch.dtype
    causal: bool

    def __call__(self) -> tuple[Any, ...]:
        q, k, v, grad = (
            self.random(*shape, dtype=self.dtype).transpose(1, 2)
            for shape in (self.many, self.few, self.few, self.many)
        )
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        return q, k, v, self.causal, _attend(q, k, v, self.causal), grad


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, *_: Tensor) -> Tensor:
    """With the kernel that torch selects, as plans do, and as in training: returning the logsumexp."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def _attend_backward(q: Tensor, k: Tensor, v: Tensor, causal: bool, out: Tensor, grad: Tensor) -> Any:
    return torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)


def _links(random: _Random) -> Iterator[Case]:
    for exponent in (12, 16, 20, 24, 28):
        make = random.several([(2**exponent,)], torch.uint8)
        yield Case("link", f"2^{exponent}", torch.uint8, 0, 2**exponent, make, lambda x: x.to("cuda:1"))


def _scaled(shape: tuple[int, ...], factor: float) -> tuple[int, ...]:
    """Sizes times a factor, rounded to multiples of 8."""
    return tuple(max(8, round(n * factor / 8) * 8) for n in shape)


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _memory(device: str) -> int:
    if device == "cuda":
        return torch.cuda.get_device_properties(0).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.write_text(json.dumps(measure(arguments.device), indent=1) + "\n")
