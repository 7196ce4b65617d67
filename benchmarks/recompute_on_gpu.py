"""What backward computes again under limits on memory, on one GPU: a Llama of 3.6B that does not fit without.

    python benchmarks/recompute_on_gpu.py [--limits 130GB,100GB,80GB] [--policies none,full] [--json FILE]
    python benchmarks/recompute_on_gpu.py --limits "" --policies "" --offload 55GB      with states on the host
    python benchmarks/recompute_on_gpu.py --tiny --device cpu      a rehearsal with small sizes

Planned for a mesh of one device, with `recompute="auto"` for each limit and by the policies without one, and for limits
under which everything again is not enough with states on the host where they do not fit, then run there: forward,
backward and AdamW (fused), 8 sequences of 4,096 tokens in bfloat16. `peak` is what torch has allocated at most. Values
matter for time: products of zeros or NaN take less power, and then run at higher clocks, so the model is initialised as
for training, and its loss has to stay finite.
"""

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
from block_on_gpu import Timer
from blocks import Model, Shape
from execution_on_gpu import initialised
from record import Record, takes_json

LLAMA_3B = (Shape("llama3", 8, 4096, 3072, 24, 8, 8192), 28, 128256)
TINY = (Shape("llama3", 2, 64, 64, 4, 2, 96), 4, 128)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limits", default="130GB,100GB,80GB")
    parser.add_argument("--policies", default="none,full")
    parser.add_argument("--offload", default="")
    parser.add_argument("--cluster", default="h200")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    takes_json(parser)
    options = parser.parse_args()

    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    record = Record(__doc__, options.json)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    columns = {
        "recompute": "",
        "limit": "",
        "on the host": "{:d}",
        "predicted": "{:.0f} ms",
        "measured": "{:.0f} ms",
    }
    columns |= {"error": "{:+.1%}", "peak predicted": "{:.2f} GiB", "peak measured": "{:.2f} GiB"}
    columns |= {"error of peak": "{:+.1%}", "again": "{:d}", "planning": "{:.0f} s"}
    table = record.sheet(f"Llama 3.6B, 8 x 4,096 tokens, {name}, torch {torch.__version__}", columns)
    tasks: list[tuple[str, str | None, bool]] = []
    tasks += [(policy, None, False) for policy in options.policies.split(",") if policy]
    tasks += [("auto", limit, False) for limit in options.limits.split(",") if limit]
    tasks += [("full", limit, True) for limit in options.offload.split(",") if limit]
    for policy, limit, offload in tasks:
        try:
            table.add(policy, limit or "none", *measured(policy, limit, offload, options))
        except torch.OutOfMemoryError:
            record.say(f"{policy}: out of memory")
            torch.cuda.empty_cache()


def measured(policy: str, limit: str | None, offload: bool, options: Any) -> tuple[Any, ...]:
    import shardwise as sw

    shape, layers, vocabulary = TINY if options.tiny else LLAMA_3B
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        tokens = torch.empty(shape.batch, shape.positions, dtype=torch.int64)
        model, args = Model(shape, layers, vocabulary), (tokens, tokens)
    begun = time.process_time()
    plan = sw.plan(
        *(model, args),
        mesh="d=1",
        cluster=options.cluster,
        recompute=policy,
        memory=limit or "10000GB",
        offload=offload,
        compare=False,
        confirm=False,
        time_limit=120.0,
    )
    spent = time.process_time() - begun
    mesh = plan.mesh.to_device_mesh(options.device)
    model, own = initialised(shape, layers, vocabulary, options.device)
    step = sw.parallelize(model, own, mesh=mesh, plan=plan, local_outputs=True)
    del model
    optimizer = torch.optim.AdamW(step.parameters(), lr=1e-4, fused=options.device == "cuda")
    timer = Timer(options.device)
    loss = torch.zeros(())

    def once() -> None:
        nonlocal loss
        loss = step(*own)
        loss.backward()
        loss = loss.detach()
        optimizer.step()
        optimizer.zero_grad()

    seconds, peak = timer.seconds(once, rounds=10), timer.peak(once)
    assert torch.isfinite(loss), "the model diverged, and its times are not those of training"
    copies = (n for n in plan.graph.nodes if n.name.endswith("_again") and n.phase == "backward")
    again = sum(not node.facts.view for node in copies)
    cost = plan.cost
    return (
        len(plan.on_host),
        *(cost.seconds * 1e3, seconds * 1e3, cost.seconds / seconds - 1),
        *(cost.peak / 2**30, peak / 2**30, cost.peak / peak - 1 if peak else 0.0, again, spent),
    )


if __name__ == "__main__":
    main()
