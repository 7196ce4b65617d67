"""The cost of installing the book: the time of `install()`, and of DTensor's dispatch before and after it.

    python benchmarks/install.py [--repeat 15]

Dispatch is timed for an operator that the book does not affect (a custom one with its own strategy), for one that is
extended and found in DTensor's cache, and, as a noise floor, for the unaffected operator compared with itself. Rounds
before and after are interleaved in one run; the ratios are what matters.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from record import Record, takes_json
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.experimental import register_sharding
from torch.testing._internal.distributed.fake_pg import FakeStore

import shardwise as sw
from shardwise.dtensor import registered

CALLS = 400


@torch.library.custom_op("shardwise_benchmark::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x + x


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@register_sharding(torch.ops.shardwise_benchmark.twice.default)
def _strategy(x):
    return [([Shard(0)], [Shard(0)])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=15)
    takes_json(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)], src_data_rank=None)
    timed = {
        "untouched operator": lambda: torch.ops.shardwise_benchmark.twice(x),
        "extended operator": lambda: torch.ops.aten.neg.default(x),
    }
    started = time.process_time()
    sw.install()
    first = time.process_time() - started
    count = len(registered())
    before: dict[str, list[float]] = {name: [] for name in timed}
    after: dict[str, list[float]] = {name: [] for name in timed}
    floor: list[float] = []
    for _ in range(options.repeat):
        sw.uninstall()
        for name, call in timed.items():
            before[name].append(per_call(call))
        floor.append(per_call(timed["untouched operator"]))
        sw.install()
        for name, call in timed.items():
            after[name].append(per_call(call))
    record = Record(__doc__, options.json)
    columns = {"dispatch of": "", "before": "{:.1f} us", "after": "{:.1f} us", "after / before": "{:.2f}"}
    table = record.sheet("", columns, wide=34)
    for name in timed:
        table.add(name, *row(before[name], after[name]))
    table.add("untouched operator, before again", *row(before["untouched operator"], floor))
    record.say(f"`install()` itself took {first:.2f} CPU seconds for {count} operators.")


def per_call(call: Callable[[], object]) -> float:
    """CPU microseconds of one call with its sharding cached."""
    call()
    started = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - started) / CALLS * 1e6


def row(first: list[float], second: list[float]) -> tuple[float, float, float]:
    a, b = statistics.median(first), statistics.median(second)
    return a, b, b / a


if __name__ == "__main__":
    main()
