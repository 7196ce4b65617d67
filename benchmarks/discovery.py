"""Discovery compared with torch's own strategy validator, on the same calls, in one run.

    python benchmarks/discovery.py [--samples 4]

torch's validator (`torch.distributed.tensor._ops.strategy_validation`) tries every combination of placements of a call
on one set of values and two simulated ranks. Shardwise runs its complete discovery of the same ATen calls: every
generator, 2, 3 and 4 ranks, even, uneven and empty shards; a combination is one choice of placements for the inputs and
an output, tested on one set of values and one number of ranks. Times are CPU seconds of this process.
"""

import argparse
import math
import time

import torch
import torch.distributed as dist
from record import Record, takes_json
from torch.distributed.tensor._ops import strategy_validation
from torch.testing._internal.distributed.fake_pg import FakeStore

import shardwise as sw

OPS = (
    "add",
    "mul",
    "mm",
    "bmm",
    "sum",
    "softmax",
    "linalg.cross",
    "topk",
    "sort",
    "gather",
    "index_select",
    "cumsum",
)


def validator(name: str, samples: int) -> tuple[list, int, float]:
    """The ATen calls that torch's validator tested, the number of combinations, and its CPU seconds."""
    calls = []
    judge = strategy_validation._validate_aten_op_for_sample

    def recording(func, args, kwargs, *rest):
        calls.append((func, args, kwargs))
        return judge(func, args, kwargs, *rest)

    strategy_validation._validate_aten_op_for_sample = recording
    started = time.process_time()
    try:
        stats = strategy_validation.compare_operator(name, max_samples=samples)
    finally:
        strategy_validation._validate_aten_op_for_sample = judge
    return calls, stats.total_combinations, time.process_time() - started


def discovery(calls: list) -> tuple[int, float]:
    started = time.process_time()
    judged = sum(sw.discover(func, *args, **kwargs).combinations for func, args, kwargs in calls)
    return judged, time.process_time() - started


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=4, help="OpInfo samples per operator")
    takes_json(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    sw.discover(
        torch.mm, torch.rand(4, 6), torch.rand(6, 8)
    )  # the first call of a process imports and allocates

    record = Record(__doc__, options.json)
    columns = {"op": "`{}`", "calls": "{:d}", "torch: combinations": "{:,}", "torch: CPU s": "{:.2f}"}
    columns |= {"Shardwise: combinations": "{:,}", "Shardwise: CPU s": "{:.2f}", "time ratio": "{:.0f}x"}
    table = record.sheet("", columns | {"combinations a second, ratio": "{:.0f}x"}, wide=14)
    times, rates = [], []
    for name in OPS:
        calls, theirs, their_seconds = validator(name, options.samples)
        ours, our_seconds = discovery(calls)
        times.append(their_seconds / our_seconds)
        rates.append(ours / our_seconds / (theirs / their_seconds))
        table.add(name, len(calls), theirs, their_seconds, ours, our_seconds, times[-1], rates[-1])
    record.say(
        f"Geometric means: {geometric_mean(times):.1f}x less CPU time for the complete discovery, "
        f"{geometric_mean(rates):.1f}x more combinations per CPU second."
    )


if __name__ == "__main__":
    main()
