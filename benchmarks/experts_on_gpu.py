"""Mixtures of experts on one GPU: their operator and its backward, measured beside their prices.

    python benchmarks/experts_on_gpu.py [--cluster h200] [--measured FILE] [--json FILE]

In bfloat16, with SwiGLU and indices at random, each expert chosen about equally often. `peak` is what is allocated
beside the inputs. `apart` is the largest difference of results and gradients from those in double precision on the CPU,
as a share of the largest, for a small mixture. With `--measured` what a run before has measured is priced again, which
needs no GPU.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from block_on_gpu import Timer
from record import Record, takes_json
from torch import Tensor

# Tokens, slots, width, features, experts.
SIZES = (
    (4096, 6, 2048, 1408, 64),
    (16384, 6, 2048, 1408, 64),
    (8192, 8, 7168, 2048, 32),
    (16384, 2, 4096, 14336, 8),
)
GATE = "silu_gated"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cluster", default="h200")
    parser.add_argument("--measured", type=Path, help="a file that this benchmark wrote")
    takes_json(parser)
    options = parser.parse_args()
    before = None if options.measured is None else json.loads(options.measured.read_text())

    from shardwise.mesh import Cluster

    device = Cluster.of(options.cluster).device
    record = Record(__doc__, options.json)
    record.say(before["lines"][0] if before else f"apart: {apart():.1%}")
    columns = {"tokens": "{:,d}", "slots": "", "width": "{:,d}", "features": "{:,d}", "experts": "", "": ""}
    columns |= {"predicted": "{:.2f} ms", "measured": "{:.2f} ms", "error": "{:+.0%}"}
    columns |= {"peak predicted": "{:,.0f} MiB", "peak measured": "{:,.0f} MiB", "error of peak": "{:+.0%}"}
    if before:
        (sheet,) = before["sheets"]
        title, place = sheet["title"], list(sheet["columns"]).index
        found = {
            (*row[:5], row[5]): (row[place("measured")] / 1e3, row[place("peak measured")] * 2**20)
            for row in sheet["rows"]
        }
    else:
        title = f"Mixtures of experts, {torch.cuda.get_device_name()}, torch {torch.__version__}"
        found = None
    table = record.sheet(title, columns)
    for sizes in SIZES:
        for name, op, args in calls(sizes, "meta" if found else "cuda"):
            predicted, expected = prices(device, op, args)
            seconds, peak = found[*sizes, name] if found else measured(op, args)
            table.add(
                *sizes,
                name,
                *(predicted * 1e3, seconds * 1e3, predicted / seconds - 1),
                *(expected / 2**20, peak / 2**20, expected / peak - 1),
            )


def calls(sizes: tuple[int, ...], device: str) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    from shardwise.graph import experts, experts_backward

    with torch.device("meta") if device == "meta" else nullcontext():  # on the CPU first, where there is room
        tensors = mixture(*sizes, torch.bfloat16, device)
    yield "forward", experts._opoverload, (*tensors, GATE, sizes[-1])
    grad = torch.randn(tensors[0].shape, dtype=torch.bfloat16, device=device)
    yield "backward", experts_backward._opoverload, (grad, *tensors, GATE, sizes[-1])


def prices(device: Any, op: Any, args: tuple[Any, ...]) -> tuple[float, int]:
    """Seconds, and bytes beside the inputs."""
    from shardwise.calls import Call, facts
    from shardwise.graph import TensorInfo
    from shardwise.planning._prices import compute_seconds

    def infos(tensors: list[Tensor]) -> list[TensorInfo]:
        return [TensorInfo(tuple(t.shape), t.dtype, None) for t in tensors]

    made = op(*args)
    made = [made] if isinstance(made, Tensor) else made
    call = Call.of(op, *args)
    local = call.with_tensors(infos(call.tensors))
    expected = facts(op).scratch(**call.arguments) + sum(t.nbytes for t in made)
    return compute_seconds(device, "matmul", local, infos(made)), expected


def measured(op: Any, args: tuple[Any, ...]) -> tuple[float, int]:
    timer, before = Timer("cuda"), torch.cuda.memory_allocated()
    seconds = timer.seconds(lambda: op(*args), rounds=10)
    return seconds, timer.peak(lambda: op(*args)) - before


def mixture(
    tokens: int, slots: int, width: int, features: int, experts: int, dtype: torch.dtype, device: str
) -> list[Tensor | None]:
    torch.manual_seed(0)
    index = torch.rand(tokens, experts).argsort(1)[:, :slots].to(device)
    shapes = ((tokens, width), (tokens, slots), (experts, width, 2, features), (experts, features, width))
    made = [torch.randn(shape, dtype=torch.float32) / shape[-1] ** 0.5 for shape in shapes]
    x, weight, up, down = (tensor.to(device, dtype) for tensor in made)
    return [x, index, weight, up, None, down, None]


def apart() -> float:
    """How far results and gradients in bfloat16 are from those in double precision."""
    from shardwise.graph import experts, experts_backward

    given = mixture(96, 2, 64, 48, 8, torch.bfloat16, "cuda")
    wide = [t if t is None else t.cpu() if t.dtype == torch.int64 else t.cpu().double() for t in given]
    grad = torch.randn_like(given[0])
    found = [experts(*given, GATE, 8), *experts_backward(grad, *given, GATE, 8)]
    right = [experts(*wide, GATE, 8), *experts_backward(grad.cpu().double(), *wide, GATE, 8)]
    pairs = zip(found, right, strict=True)
    return max(((a.cpu().double() - b).abs().max() / b.abs().max()).item() for a, b in pairs)


if __name__ == "__main__":
    main()
