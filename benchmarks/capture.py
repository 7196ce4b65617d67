"""The cost of capture at real dimensions: CPU seconds, nodes and memory of Llama 3 8B by number of layers.

    python benchmarks/capture.py             forward and backward, batch 2, sequence 8192; about a minute
    python benchmarks/capture.py --large     also Llama 3 70B, 80 layers

Weights are on the meta device. Memory is the growth of the process since before the first capture.
"""

import argparse
import resource
import sys
import time
from pathlib import Path

import torch
from record import Record, takes_json

from shardwise import capture

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import models


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true", help="also Llama 3 70B")
    takes_json(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, args, kwargs = models.build_mlp()
    capture(model, args, kwargs)  # imports
    before = peak_megabytes()
    cases = [("8B", models.llama_8b, layers) for layers in (1, 2, 4, 8, 16, 32)]
    if options.large:
        cases.append(("70B", models.llama_70b, 80))
    columns = {"model": "", "layers": "{:d}", "weights": "{:.1f} GB", "nodes": "{:,}", "CPU s": "{:.1f}"}
    columns |= {"ms a node": "{:.2f}", "memory": "{:.0f} MB"}
    table = Record(__doc__, options.json).sheet("", columns)
    for name, build, layers in cases:
        model, args, kwargs = build(layers=layers)
        start = time.process_time()
        graph = capture(model, args, kwargs)
        seconds = time.process_time() - start
        weights = sum(p.tensor.bytes for p in graph.with_role("parameter"))
        nodes = len(graph.nodes)
        memory = peak_megabytes() - before
        table.add(name, layers, weights / 1e9, nodes, seconds, 1000 * seconds / nodes, memory)


if __name__ == "__main__":
    main()
