"""A training step on gloo ranks with collectives beside calls, compared with the same plan without.

    python benchmarks/overlap.py [--ranks 4] [--rounds 15]

A stack of layers with parameters and batch sharded as in FSDP: every weight is gathered before each use, every gradient
reduced. On one machine a gloo collective is copies on the cores that calls use, which leaves nothing to hide. So each
one also takes the time of a link between machines, in which no core works: it is complete when gloo says so and its
bytes have passed a link that passes one message at a time. The link is as slow as makes the collectives of a step take
as long as its calls. The programs run in turn, round by round, in the same processes; ratios are those of medians.
"""

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from record import Record, takes_json
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import shardwise as sw
from shardwise.graph import capture
from shardwise.modules import module_of
from shardwise.planning import Plan
from shardwise.verification import on_ranks

WIDTH, DEPTH, ROWS = 512, 8, 1024  # rows of the batch of each rank


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().mean()


class SlowLink(TorchDispatchMode):
    """Collectives take as long as their bytes need on a link, beside what they take."""

    def __init__(self, seconds_per_byte: float) -> None:
        super().__init__()
        self.seconds_per_byte, self.free, self.sent = seconds_per_byte, 0.0, 0
        self.arrives: dict[int, float] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = str(function)
        if "_c10d_functional.wait_tensor" in name:
            time.sleep(max(0.0, self.arrives.pop(args[0].data_ptr(), 0.0) - time.monotonic()))
        elif "_c10d_functional." in name:
            size = max(args[0].nbytes, result.nbytes)
            self.sent += size
            self.free = max(self.free, time.monotonic()) + size * self.seconds_per_byte
            self.arrives[result.data_ptr()] = self.free
        return result


def job(document: dict[str, Any], rounds: int, ahead: int) -> dict[str, Any]:
    """On every rank: medians of both programs, and the largest difference of their gradients."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    plan = Plan.from_json(document)
    x = torch.randn(plan.mesh.ranks * ROWS, WIDTH)
    model = Stack()
    programs = {
        "waits at once": sw.parallelize(model, (x,), mesh=plan.mesh.to_device_mesh("cpu"), plan=plan),
        "beside calls": sw.parallelize(
            model, (x,), mesh=plan.mesh.to_device_mesh("cpu"), plan=replace(plan, ahead=ahead, bound=None)
        ),
    }

    def step(name: str, link: SlowLink) -> float:
        dist.barrier()
        begun = time.perf_counter()
        with link:
            programs[name](x).backward()
        dist.barrier()
        return time.perf_counter() - begun

    fast = SlowLink(0.0)
    alone = [step("waits at once", fast) for _ in range(6)][3:]
    shared = torch.tensor(statistics.median(alone) / (fast.sent / 6))
    dist.broadcast(shared, 0)
    for module in programs.values():
        module.zero_grad()
    times: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds + 2):
        for name in sorted(programs, reverse=bool(number % 2)):
            taken = step(name, SlowLink(float(shared)))
            if number >= 2:
                times[name].append(taken)
    one, other = ([p.grad.to_local() for p in module.parameters()] for module in programs.values())
    apart = max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
    return {
        "calls": statistics.median(alone),
        "medians": {name: statistics.median(found) for name, found in times.items()},
        "apart": apart,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    takes_json(parser)
    options = parser.parse_args()
    record = Record(__doc__, options.json)
    mesh, model, args = f"fsdp={options.ranks}", Stack(), (torch.empty(options.ranks * ROWS, WIDTH),)
    nodes = [node for node in capture(model, args).nodes if node.op == "aten.mm.default"]
    products = {node.name: "S(0)" for node in nodes if node.phase == "forward"}
    pins = {"x": "S(0)", "*.weight": "S(0)", **products}
    plan = sw.plan(model, args, mesh=mesh, cluster="laptop", pin=pins, compare=False, confirm=False)
    ahead = 2 * WIDTH * WIDTH * 4
    module = module_of(__file__, "overlap_benchmark")
    files = {"overlap_benchmark": __file__}
    found = on_ranks(
        module.job, plan.to_json(), options.rounds, ahead, ranks=options.ranks, timeout=500, files=files
    )[0]
    title = f"{DEPTH} layers of {WIDTH}x{WIDTH}, {ROWS} rows a rank; {options.ranks} gloo ranks"
    table = record.sheet(title, {"program": "", "step": "{:.0f} ms", "ratio": "{:.2f}"}, wide=24)
    table.add(
        "without the slow link", found["calls"] * 1e3, found["calls"] / found["medians"]["waits at once"]
    )
    for name, median in found["medians"].items():
        table.add(name, median * 1e3, median / found["medians"]["waits at once"])
    record.say(f"The largest difference of gradients is {found['apart']:.1e}.")


if __name__ == "__main__":
    main()
