"""One rank's part of a planned step on one GPU, against its price: Llama 8B on 8x8, without the other 63 ranks.

    python benchmarks/rank_on_gpu.py plan FOLDER                here: the plans, eager and compiled
    python benchmarks/rank_on_gpu.py run FOLDER measured.json   on the GPU: each program of the first rank, timed
    python benchmarks/rank_on_gpu.py [compare measured.json]    here: the table, by default from results/; plans again

Collectives return memory of the right shape with any values in it, and take no time. So what is timed is the
computation of the rank, with the copies before and after collectives, and is compared with the plan's price of that.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from block_on_gpu import Timer
from blocks import Model, Shape
from execution_on_gpu import EXECUTIONS
from record import Record, takes_json

MEASURED = Path(__file__).parent / "results" / "h200_rank.json"
LLAMA_8B = (Shape("llama3", 16, 8192, 4096, 32, 8, 14336), 32, 128256, "dp=8,tp=8")
TINY = (Shape("llama3", 4, 16, 64, 4, 2, 96), 2, 128, "dp=2,tp=2")


def model_of(sizes: Any) -> tuple[Model, tuple[Any, Any]]:
    """The model and its arguments, on the meta device."""
    shape, layers, vocabulary, _ = sizes
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        tokens = torch.empty(shape.batch, shape.positions, dtype=torch.int64)
        return Model(shape, layers, vocabulary), (tokens, tokens)


def make_plans(folder: Path, sizes: Any, cluster: str) -> None:
    folder.mkdir(exist_ok=True)
    for how in EXECUTIONS:
        plan = planned(sizes, cluster, how)
        plan.save(folder / f"{how}.json")
        print(plan.summary(), flush=True)


def planned(sizes: Any, cluster: str, how: str) -> Any:
    import shardwise as sw

    model, args = model_of(sizes)
    return sw.plan(model, args, mesh=sizes[-1], cluster=cluster, execution=how, compare=False)


def run(folder: Path, out: Path, sizes: Any, device: str) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import shardwise as sw

    model, args = model_of(sizes)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "rows": [],
    }
    for how in EXECUTIONS:
        begun = time.monotonic()
        plan = sw.Plan.load(folder / f"{how}.json")
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=plan.mesh.ranks)
        _alone()
        stand_ins = _stand_ins(device)
        mesh = plan.mesh.to_device_mesh(device)
        step = sw.parallelize(
            model, args, mesh=mesh, plan=plan, init="empty", compile=how == "compiled", local_outputs=True
        )
        for parameter in step.parameters():
            torch.nn.init.normal_(parameter.to_local(), std=0.02)
        tokens = torch.randint(sizes[2], (2, *args[0].shape), device=device)
        timer = Timer(device)

        def once(step: Any = step, tokens: Any = tokens) -> None:
            step(tokens[0], tokens[1]).backward()
            for parameter in step.parameters():
                parameter.grad = None

        row = {"execution": how, "seconds": timer.seconds(once, rounds=5), "peak": timer.peak(once)}
        print(row, f"{time.monotonic() - begun:.0f} s", flush=True)
        found["rows"].append(row)
        out.write_text(json.dumps(found, indent=1) + "\n")
        del stand_ins
        dist.destroy_process_group()


def _stand_ins(device: str) -> torch.library.Library:
    """In the place of collectives, while this lives: those of a fake process group copy."""
    library = torch.library.Library("_c10d_functional", "IMPL")

    def gathered(x: Any, ranks: int, _: str) -> Any:
        return x.new_empty(x.shape[0] * ranks, *x.shape[1:])

    def scattered(x: Any, _: str, ranks: int, __: str) -> Any:
        return x.new_empty(x.shape[0] // ranks, *x.shape[1:])

    def exchanged(x: Any, received: list[int], *_: Any) -> Any:
        return x.new_empty(sum(received), *x.shape[1:])

    kernels: dict[str, Any] = {
        "all_reduce": lambda x, *_: torch.empty_like(x),
        "all_reduce_": lambda x, *_: x,
        "all_gather_into_tensor": gathered,
        "all_gather_into_tensor_out": lambda *_, out: out,
        "reduce_scatter_tensor": scattered,
        "all_to_all_single": exchanged,
    }
    for name, kernel in kernels.items():
        library.impl(name, kernel, device.upper())
    return library


def _alone() -> None:
    """The other ranks agree with everything and send nothing."""

    def gathered(messages: list[Any], own: Any, **_: Any) -> None:
        messages[:] = [own] * len(messages)

    dist.all_gather_object = gathered
    dist.broadcast_object_list = lambda *_, **__: None


def compare(measured: Path, sizes: Any, cluster: str, record: Record) -> None:
    document = json.loads(measured.read_text())
    columns = {"execution": "", "predicted": "{:.1f} ms", "measured": "{:.1f} ms", "error": "{:+.1%}"}
    columns |= {"peak predicted": "{:.1f} GiB", "peak measured": "{:.1f} GiB"}
    where = f"{document['device']}, torch {document['torch'].partition('+')[0]}"
    table = record.sheet(f"The computation of one rank of 8x8, Llama 8B, on {where}", columns)
    for row in document["rows"]:
        cost = planned(sizes, cluster, row["execution"]).cost
        error = cost.compute / row["seconds"] - 1
        table.add(
            row["execution"],
            cost.compute * 1e3,
            row["seconds"] * 1e3,
            error,
            cost.peak / 2**30,
            row["peak"] / 2**30,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", nargs="?", default="compare", choices=["plan", "run", "compare"])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cluster", default="h200")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal with small sizes")
    takes_json(parser)
    options = parser.parse_args()
    sizes = TINY if options.tiny else LLAMA_8B
    if options.action == "plan":
        make_plans(*options.paths, sizes, options.cluster)
    elif options.action == "run":
        run(*options.paths, sizes, options.device)
    else:
        compare(*(options.paths or [MEASURED]), sizes, options.cluster, Record(__doc__, options.json))


if __name__ == "__main__":
    main()
