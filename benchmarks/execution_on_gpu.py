"""Eager and compiled programs on one GPU against their prices: one rank's Llama block, and a Llama of 1B.

    python benchmarks/execution_on_gpu.py run measured.json       on the GPU
    python benchmarks/execution_on_gpu.py [compare measured.json] here: the tables, by default from results/

A block is that of one rank under tensor parallelism of 1, 2, 4 and 8, without collectives: forward and backward of one
sequence of 8192 positions in bfloat16. The model is trained by AdamW (fused) on four sequences of 4096 positions, by
torch's own program and by this package's of a mesh of one, which take turns. What a host needs to start calls differs
between hosts of one GPU, and from moment to moment: it is measured in turns with the blocks, by `shardwise calibrate`'s
cases, and predictions are for that host.
"""

import argparse
import gc
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from block_on_gpu import Timer, on_one_device
from blocks import Model, Shape
from record import Record, takes_json
from torch import nn

from shardwise import Cluster, capture, parallelize
from shardwise.mesh import Start, host_of, starts
from shardwise.planning import plan_graph

MEASURED = Path(__file__).parent / "results" / "h200_execution.json"
EXECUTIONS = ("eager", "compiled")
WIDTHS = {4096: (32, 8, 14336), 8192: (64, 8, 28672), 2048: (16, 8, 8192)}
BLOCKS = tuple(
    Shape("llama3", 1, 8192, width, *sizes, ranks=ranks)
    for width, sizes in WIDTHS.items()
    for ranks in (1, 8, 2, 4)
)
ONE_B = (Shape("llama3", 4, 4096, 2048, 32, 8, 8192), 16, 128256)
TINY_BLOCKS = (Shape("llama3", 1, 32, 64, 4, 2, 96), Shape("llama3", 1, 32, 64, 4, 2, 96, ranks=2))
TINY = (Shape("llama3", 2, 16, 64, 4, 2, 96), 2, 128)
TURNS = 5


def measure(out: Path, device: str, tiny: bool) -> None:
    torch.set_default_dtype(torch.bfloat16)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "blocks": [], "models": []}
    _measure_blocks(TINY_BLOCKS if tiny else BLOCKS, device, found)
    _keep(found, out)
    for how in EXECUTIONS:  # last, since what a compiled model holds is not all freed
        for row in _measure_model(how, TINY if tiny else ONE_B, device):
            found["models"].append(row)
            _keep(found, out, row)


def _measure_blocks(shapes: Sequence[Shape], device: str, found: dict[str, Any]) -> None:
    """All blocks in turns, and what the host needs in each turn: a host is faster at some moments than at others."""
    torch._dynamo.config.recompile_limit = 2 * len(shapes)  # blocks are of one class
    timer, steps, peaks = Timer(device), [], []
    for shape, how in product(shapes, EXECUTIONS):
        held = _held(device)
        steps.append(_block_step(shape, how, device))
        peaks.append(timer.peak(steps[-1]) - held)
        print(shape.name, how, f"{peaks[-1] / 1e6:.0f} MB", flush=True)
    turns, hosts = [], []
    for _ in range(TURNS):
        turns.append(timer.in_turns(*steps, turns=1, rounds=8))
        hosts.append(starts() if device == "cuda" else [])
        print(hosts[-1], flush=True)
    found["host"] = [
        {**asdict(same[0]), "seconds": statistics.median(start.seconds for start in same)}
        for same in zip(*hosts, strict=True)
    ]
    for (shape, how), peak, taken in zip(
        product(shapes, EXECUTIONS), peaks, zip(*turns, strict=True), strict=True
    ):
        row = {"shape": shape.name, "execution": how, "seconds": statistics.median(taken), "turns": taken}
        found["blocks"].append({**row, "peak": peak})


def _block_step(shape: Shape, how: str, device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    with torch.device(device):
        module = shape.build()
    x = shape.input(device)
    tangent = torch.randn_like(x)
    call = _as(how, module)

    def step() -> None:
        call(x).backward(tangent)
        for tensor in (*module.parameters(), x):
            tensor.grad = None

    return step


def _held(device: str) -> int:
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def _measure_model(how: str, sizes: Any, device: str) -> Iterator[dict[str, Any]]:
    """Torch's own program and this package's."""
    model, tokens = initialised(*sizes, device)
    steps = [_step(_as(how, model), model, tokens)]
    timer = Timer(device)
    peaks = [timer.peak(steps[0])]
    _forget()
    held = _held(device)
    model, tokens = initialised(*sizes, device)
    plan = on_one_device(capture(model, tokens, execution=how), "h200")
    sharded = parallelize(model, tokens, plan=plan, compile=how == "compiled", local_outputs=True)
    del model
    steps.append(_step(sharded, sharded, tokens))
    peaks.append(timer.peak(steps[1]) - held)
    for program, seconds, peak in zip(("torch", "shardwise"), timer.in_turns(*steps), peaks, strict=True):
        yield {"program": program, "execution": how, "seconds": seconds, "peak": peak}


def initialised(shape: Shape, layers: int, vocabulary: int, device: str) -> tuple[nn.Module, tuple[Any, Any]]:
    """A model as training begins with it, and arguments."""
    _forget()
    torch.manual_seed(0)
    with torch.device(device):
        model = Model(shape, layers, vocabulary)
        tokens = torch.randint(vocabulary, (2, shape.batch, shape.positions))
    return model, (tokens[0], tokens[1])


def _step(call: Callable[..., Any], module: nn.Module, tokens: Any) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        call(*tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _as(how: str, module: nn.Module) -> Callable[..., Any]:
    return module if how == "eager" else torch.compile(module, dynamic=False)


def _forget() -> None:
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _keep(found: dict[str, Any], out: Path, row: Any = None) -> None:
    print(row, flush=True)
    out.write_text(json.dumps(found, indent=1) + "\n")


def compare(measured: Path, cluster: str, record: Record) -> None:
    torch.set_default_dtype(torch.bfloat16)
    document = json.loads(measured.read_text())
    preset = Cluster.of(cluster)
    host = host_of([Start(**start) for start in document["host"]])
    here = replace(preset, device=replace(preset.device, host={**preset.device.host, **host}))
    shapes = {shape.name: shape for shape in (*BLOCKS, *TINY_BLOCKS)}
    where = (
        f"{document['device']}, torch {document['torch'].partition('+')[0]}; predicted with cluster {cluster}"
    )
    columns = {
        "block": "",
        "execution": "",
        "predicted": "{:.2f} ms",
        "measured": "{:.2f} ms",
        "error": "{:+.1%}",
    }
    columns |= {"peak predicted": "{:.0f} MB", "peak measured": "{:.0f} MB", "error of peak": "{:+.1%}"}
    table = record.sheet(f"One rank's block on {where}", columns, wide=42)
    errors: list[float] = []
    peaks: list[float] = []
    for row in document["blocks"]:
        shape = shapes[row["shape"]]
        with torch.device("meta"):
            module, x = shape.build(), shape.input("meta")
        cost = on_one_device(capture(module, (x,), execution=row["execution"]), here).cost
        errors.append(cost.seconds / row["seconds"] - 1)
        peaks.append(cost.peak / row["peak"] - 1)
        table.add(
            *(row["shape"], row["execution"], cost.seconds * 1e3, row["seconds"] * 1e3, errors[-1]),
            *(cost.peak / 1e6, row["peak"] / 1e6, peaks[-1]),
        )
    record.say(f"Largest error: time {max(map(abs, errors)):.1%}, peak memory {max(map(abs, peaks)):.1%}.")
    columns = {"program": "", "execution": "", "step": "{:.1f} ms", "peak": "{:.1f} GiB"}
    columns |= {"predicted": "{:.1f} ms", "error": "{:+.1%}"}
    columns |= {"peak predicted": "{:.1f} GiB", "error of peak": "{:+.1%}"}
    table = record.sheet(f"A step of a Llama of 1B on {where}", columns)
    costs: dict[str, Any] = {}
    for row in document["models"]:
        how = row["execution"]
        if how not in costs:
            shape, layers, vocabulary = ONE_B
            with torch.device("meta"):
                model = Model(shape, layers, vocabulary)
                tokens = torch.empty(shape.batch, shape.positions, dtype=torch.int64)
            graph = capture(model, (tokens, tokens), execution=how)
            costs[how] = plan_graph(graph, mesh="d=1", cluster=here, compare=False, confirm=False).cost
        cost = costs[how]
        table.add(
            *(row["program"], how, row["seconds"] * 1e3, row["peak"] / 2**30, cost.seconds * 1e3),
            *(cost.seconds / row["seconds"] - 1, cost.peak / 2**30, cost.peak / row["peak"] - 1),
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", nargs="?", default="compare", choices=["run", "compare"])
    parser.add_argument("file", nargs="?", type=Path, default=MEASURED)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal with small sizes")
    parser.add_argument("--cluster", default="h200")
    takes_json(parser)
    options = parser.parse_args()
    if options.action == "compare":
        compare(options.file, options.cluster, Record(__doc__, options.json))
        return
    backend = "nccl" if options.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method="tcp://127.0.0.1:29533", world_size=1, rank=0)
    measure(options.file, options.device, options.tiny)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
