"""How well `doctor` forecasts the CPU seconds of planning.

    python benchmarks/forecast.py --sample 12 [--seed 0]

Tiny models by chance from those of `breadth.py`, on a mesh of 2x2. The forecast and the plan are each made in a process
of their own, so that neither finds prices that the other has worked out.
"""

import argparse
import json
import os
import random
import statistics
import warnings
from collections.abc import Callable

import torch
from architectures import architectures
from record import Record, takes_json

from shardwise.errors import UsageError
from shardwise.graph import Graph, capture
from shardwise.mesh import DEFAULT_CLUSTER, Cluster, Mesh
from shardwise.planning import diagnosis, plan_graph
from shardwise.progress import silent
from shardwise.solver import prepare

MESH = "a=2,b=2"


def forecast(graph: Graph) -> float:
    return diagnosis(graph, Mesh.parse(MESH), Cluster.of(DEFAULT_CLUSTER), 0.0, silent).planning


def planning(graph: Graph) -> float:
    begun = sum(os.times()[:4])
    plan_graph(graph, mesh=MESH)
    return sum(os.times()[:4]) - begun


def apart(work: Callable[[Graph], float], graph: Graph) -> float:
    """The result of some work in a process of its own."""
    receiving, sending = os.pipe()
    process = os.fork()
    if not process:
        with os.fdopen(sending, "w") as pipe:
            print(json.dumps(work(graph)), file=pipe)
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        told = pipe.read()
    os.waitpid(process, 0)
    return json.loads(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=12, metavar="N", help="so many models, by chance")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    takes_json(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    prepare()
    builds, _ = architectures()
    record = Record(__doc__, options.json)
    columns = {"model": "", "calls": "{:d}", "forecast": "{:.1f}", "CPU s": "{:.1f}", "ratio": "{:.2f}"}
    sheet = record.sheet("", columns, 44)
    ratios = []
    for name in random.Random(options.seed).sample(sorted(builds), options.sample):
        torch.manual_seed(0)
        try:
            graph = capture(*builds[name]())
        except (UsageError, ImportError, ValueError) as error:
            record.say(f"{name} is left out: {str(error)[:100]}")
            continue
        told, taken = apart(forecast, graph), apart(planning, graph)
        ratios.append(taken / told)
        sheet.add(name, len(graph.nodes), told, taken, taken / told)
    within = sum(0.5 <= ratio <= 2 for ratio in ratios)
    record.say(
        f"Plans took {statistics.median(ratios):.2f} times as long as forecast in the median, "
        f"{min(ratios):.2f} to {max(ratios):.2f} times; {within} of {len(ratios)} within a factor of two."
    )


if __name__ == "__main__":
    main()
