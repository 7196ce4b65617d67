"""Mixtures of experts on one GPU: their operator and its backward, measured beside their prices.

    python benchmarks/experts_on_gpu.py [--cluster h200] [--json FILE]

In bfloat16, with SwiGLU and indices at random, each expert chosen about equally often. `peak` is what is allocated
beside the inputs. `apart` is the largest difference of results and gradients from those in double precision on the CPU,
as a share of the largest, for a small mixture.
"""

import argparse

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
    takes_json(parser)
    options = parser.parse_args()

    from shardwise.calls import Call, facts
    from shardwise.graph import TensorInfo
    from shardwise.mesh import Cluster
    from shardwise.planning._prices import compute_seconds

    device = Cluster.of(options.cluster).device
    record = Record(__doc__, options.json)
    record.say(f"apart: {apart():.1%}")
    columns = {"tokens": "{:,d}", "slots": "", "width": "{:,d}", "features": "{:,d}", "experts": "", "": ""}
    columns |= {"predicted": "{:.2f} ms", "measured": "{:.2f} ms", "error": "{:+.0%}"}
    columns |= {"peak predicted": "{:,.0f} MiB", "peak measured": "{:,.0f} MiB", "error of peak": "{:+.0%}"}
    title = f"Mixtures of experts, {torch.cuda.get_device_name()}, torch {torch.__version__}"
    table, timer = record.sheet(title, columns), Timer("cuda")

    def infos(tensors: list[Tensor]) -> list[TensorInfo]:
        return [TensorInfo(tuple(t.shape), t.dtype, None) for t in tensors]

    for sizes in SIZES:
        tensors = mixture(*sizes, torch.bfloat16, "cuda")
        grad = torch.randn_like(tensors[0])
        own = torch.ops.shardwise
        both = (
            ("forward", own.experts.default, (*tensors, GATE, sizes[-1])),
            ("backward", own.experts_backward.default, (grad, *tensors, GATE, sizes[-1])),
        )
        for name, op, args in both:
            made = op(*args)
            made = [made] if isinstance(made, Tensor) else made
            call = Call.of(op, *args)
            local = call.with_tensors(infos(call.tensors))
            predicted = compute_seconds(device, "matmul", local, infos(made))
            expected = facts(call.op).scratch(**call.arguments) + sum(t.nbytes for t in made)
            del made
            before = torch.cuda.memory_allocated()
            seconds = timer.seconds(lambda op=op, args=args: op(*args), rounds=10)
            peak = timer.peak(lambda op=op, args=args: op(*args)) - before
            table.add(
                *sizes,
                name,
                *(predicted * 1e3, seconds * 1e3, predicted / seconds - 1),
                *(expected / 2**20, peak / 2**20, expected / peak - 1),
            )


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
