"""Step times on four gloo ranks: a Shardwise plan compared with PyTorch's own tensor parallelism.

    python benchmarks/runtime.py [--rounds 25]

First a Megatron MLP, sharded by columns and then by rows: with `parallelize_module`, and by Shardwise with the same
layouts. Then the forward of a deep narrow model with a sharded batch, where nothing is communicated and the time is
that of dispatching operators: with eager DTensor, with Shardwise, and with the plain model on the local batch. All
variants are timed in turn, round by round, in the same processes; ratios are those of medians. Results must be equal.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from record import Record, takes_json
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwise as sw
from shardwise.dtensor import record_collectives
from shardwise.modules import module_of
from shardwise.verification import on_ranks

RANKS = 4


class MLP(nn.Module):
    """Pairs of layers: wide in between."""

    def __init__(self, width: int, hidden: int, depth: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(width, hidden) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(hidden, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.relu(up(x)))
        return x.square().mean()


class Deep(MLP):
    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.relu(up(x)))
        return x


def megatron(
    rounds: int, width: int = 512, hidden: int = 2048, depth: int = 1, batch: int = 256
) -> dict[str, Any]:
    """On every rank: a training step of both variants, compared and then timed in turn."""
    torch.manual_seed(0)
    x = torch.randn(batch, width)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))

    def made() -> MLP:
        torch.manual_seed(1)
        return MLP(width, hidden, depth)

    by_hand = made()
    styles = {f"up.{i}": ColwiseParallel() for i in range(depth)}
    styles |= {f"down.{i}": RowwiseParallel() for i in range(depth)}
    parallelize_module(by_hand, mesh, styles)
    model = made()
    pins = {"x": "R", "up.*.weight": "S(0)", "up.*.bias": "S(0)", "down.*.weight": "S(1)", "down.*.bias": "R"}
    planned = sw.parallelize(model, (x,), mesh=mesh, pin=pins)

    def step(module: nn.Module) -> Callable[[], Tensor]:
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

        def run() -> Tensor:
            loss = module(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return run

    sent, worst = _compare(by_hand, planned, x)
    ways = {"parallelize_module": step(by_hand), "shardwise": step(planned)}
    return {"medians": _medians(ways, rounds, time.perf_counter), "worst": worst, "sent": sent}


def dispatch(
    rounds: int, width: int = 16, hidden: int = 32, depth: int = 16, batch: int = 8
) -> dict[str, Any]:
    """On every rank: forward with the batch sharded. CPU seconds of this process, because no rank waits for another."""
    torch.manual_seed(0)
    x = torch.randn(batch, width)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    model, eager = Deep(width, hidden, depth), Deep(width, hidden, depth)
    eager.load_state_dict(model.state_dict())
    distribute_module(eager, mesh)
    sharded_x = distribute_tensor(x, mesh, [Shard(0)])
    pins = {"x": "S(0)", "*.weight": "R", "*.bias": "R", "output": "S(0)"}
    planned = sw.parallelize(model, (x,), mesh=mesh, pin=pins, training=False, local_outputs=True)
    local = sharded_x.to_local()
    with torch.no_grad():
        results = [eager(sharded_x).to_local(), planned(local), model(local)]
        worst = max(float((result - results[2]).abs().max()) for result in results)
        ways = {
            "eager DTensor": lambda: eager(sharded_x),
            "shardwise": lambda: planned(local),
            "the model itself": lambda: model(local),
        }
        medians = _medians(ways, rounds, time.process_time)
    return {"medians": medians, "worst": worst, "ops": len(planned.plan.graph.nodes)}


def _medians(ways: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of each variant, timed in turn after three warm-up rounds."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 3):
        for way in sorted(ways, reverse=bool(number % 2)):
            dist.barrier()
            started = clock()
            ways[way]()
            dist.barrier()
            if number >= 3:
                times[way].append(clock() - started)
    return {way: statistics.median(found) for way, found in times.items()}


def _compare(by_hand: nn.Module, planned: nn.Module, x: Tensor) -> tuple[dict[str, dict[str, int]], float]:
    """Collectives of one step of each variant, and the largest relative difference of losses and gradients."""
    sent, results = {}, []
    for way, module in (("parallelize_module", by_hand), ("shardwise", planned)):
        with record_collectives() as seen:
            loss = module(x)
            loss.backward()
        sent[way] = seen.counts()
        gradients = {name: _whole(p.grad) for name, p in module.named_parameters() if p.grad is not None}
        results.append({"loss": _whole(loss).detach(), **gradients})
        module.zero_grad()
    one, other = results
    worst = max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)
    return sent, worst


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=25)
    takes_json(parser)
    options = parser.parse_args()
    rounds, record = options.rounds, Record(__doc__, options.json)
    # The ranks must be able to import `job`: import this file as a module.
    module = module_of(__file__, "runtime_benchmark")
    for function in (module.megatron, module.dispatch):
        files = {"runtime_benchmark": __file__}
        found = on_ranks(function, rounds, ranks=RANKS, timeout=500, files=files)[0]
        named = zip(("width", "hidden", "depth", "batch"), function.__defaults__, strict=True)
        sizes = ", ".join(f"{name} {size}" for name, size in named)
        clock = "wall" if "sent" in found else "CPU"
        columns = {"way": "", f"{clock} time": "{:.2f} ms", "shardwise / this": "{:.2f}"}
        columns |= {"collectives": ""} if "sent" in found else {"an operator": "{:.1f} us"}
        title = f"{TITLES[function.__name__]}: {sizes}; {RANKS} gloo ranks, medians of {rounds} rounds"
        table = record.sheet(title, columns, wide=20)
        for way, median in found["medians"].items():
            ratio = found["medians"]["shardwise"] / median
            work = _listed(found["sent"][way]) if "sent" in found else median / found["ops"] * 1e6
            table.add(way, median * 1e3, ratio, work)
        record.say(f"{title.partition(':')[0]}: the largest difference of results is {found['worst']:.1e}.")


TITLES = {"megatron": "A training step of a Megatron MLP", "dispatch": "Forward of a deep narrow model"}


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


if __name__ == "__main__":
    main()
