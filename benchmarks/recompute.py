"""What backward computes again under a limit on memory, decided together with the layouts.

    python benchmarks/recompute.py [--mesh dp=8,tp=8] [--memory 80GB,40GB,24GB,16GB] [--recompute none,full,auto]
        [--passes 1,2,4]

Llama 3 8B (Hugging Face `LlamaForCausalLM`, fake weights, sequence 8192, two sequences for each rank of the first axis,
Adam), planned for h100, in a step of one pass or of several of fewer sequences each. `again` is the share of the calls
of forward, other than views, that run again; the gap is between the plan and the bound of its own problem. CPU seconds
are those of planning without capture.
"""

import argparse
import sys
import time
from itertools import product
from pathlib import Path

from record import Record, takes_json

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mesh", action="append", help="may be repeated; dp=8,tp=8 by default")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--memory", default="80GB,40GB,24GB,16GB")
    parser.add_argument("--recompute", default="none,full,auto")
    parser.add_argument("--passes", default="1", help="of a step, each with its part of the sequences")
    parser.add_argument("--cluster", default="h100")
    parser.add_argument("--gap", type=float, default=0.01)
    parser.add_argument("--time-limit", type=float, default=240.0)
    takes_json(parser)
    options = parser.parse_args()

    import models

    from shardwise.errors import UsageError
    from shardwise.graph import capture
    from shardwise.mesh import Cluster, Mesh
    from shardwise.planning import Planner

    record = Record(__doc__, options.json)
    columns = {"mesh": "", "memory": "", "recompute": "", "passes": "{:d}", "step": "{:.4f} s"}
    columns |= {"peak": "{:.1f} GB", "again": "{:.0%}", "gap": "{:.2%}", "planning": "{:.0f} s"}
    table = record.sheet("Llama 3 8B", columns)
    cases = product(options.mesh or ["dp=8,tp=8"], map(int, options.passes.split(",")))
    for (text, passes), recompute in product(cases, options.recompute.split(",")):
        mesh = Mesh.parse(text)
        model, args, kwargs = models.llama_8b(options.layers, batch=2 * mesh.shape[0] // passes)
        graph = capture(model, args, kwargs, recompute=recompute)
        calls = sum(n.phase == "forward" and not n.facts.view for n in graph.nodes)
        for memory in options.memory.split(","):
            begun = time.process_time()
            cluster = Cluster.of(options.cluster)
            planner = Planner(graph, mesh, cluster, memory=memory, micro_batches=passes)
            try:
                plan = planner.plan({}, gap=options.gap, time_limit=options.time_limit, compare=False)
            except UsageError as error:
                record.say(f"{text}, {memory}, {recompute}, {passes} passes: {error}")
                continue
            again = sum(
                n.name.endswith("_again") and n.phase == "backward" and not n.facts.view
                for n in plan.graph.nodes
            )
            gap = None if plan.bound is None else 1 - plan.bound / plan.cost.seconds
            spent = time.process_time() - begun
            cost = plan.cost
            table.add(
                *(text, memory, recompute, passes, cost.seconds, cost.peak / 1e9),
                *(again / calls, gap, spent),
            )


if __name__ == "__main__":
    main()
