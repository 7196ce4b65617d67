"""Planning at production size: phases in CPU seconds, nodes, choices, gap and memory of the process.

    python benchmarks/planning.py [--model 8b] [--layers 1,2,4,8,16,32] [--mesh dp=8,tp=8] [--unfolded]

Llama 3 dimensions (Hugging Face `LlamaForCausalLM`, fake weights, sequence 8192, two sequences for each rank of the
first axis, training with Adam). Each line is a process of its own, so that its memory is its own. `--unfolded` solves
the problem also without sharing choices among layers: its bound holds for every plan, so it says what sharing lost.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="8b", choices=["8b", "70b"])
    parser.add_argument("--layers", default="", help="numbers of layers; all of the model's by default")
    parser.add_argument("--mesh", action="append", help="may be repeated; dp=8,tp=8 by default")
    parser.add_argument("--cluster", default="h100")
    parser.add_argument("--gap", type=float, default=0.005)
    parser.add_argument("--time-limit", type=float, default=120.0)
    parser.add_argument("--unfolded", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _plan_one(json.loads(options.one))
        return
    columns = (
        "layers",
        "mesh",
        "nodes",
        "capture",
        "choices",
        "problem",
        "solve",
        "baselines",
        "all but capture",
    )
    print("  ".join(f"{c:>9}" for c in columns), "  most choices   step      gap    fits   RSS")
    deepest = {"8b": 32, "70b": 80}[options.model]
    for mesh in options.mesh or ["dp=8,tp=8"]:
        for layers in [int(n) for n in options.layers.split(",") if n] or [deepest]:
            task = {**vars(options), "mesh": mesh, "layers": layers}
            subprocess.run([sys.executable, __file__, "--one", json.dumps(task)], check=True)


def _plan_one(task: dict) -> None:
    sys.path.insert(0, str(EXAMPLES))
    import models

    from shardwise.graph import capture
    from shardwise.mesh import Cluster, Mesh
    from shardwise.plan import Planner

    mesh = Mesh.parse(task["mesh"])
    build = {"8b": models.llama_8b, "70b": models.llama_70b}[task["model"]]
    begun = time.process_time()
    model, args, kwargs = build(task["layers"], batch=2 * mesh.shape[0])
    graph = capture(model, args, kwargs)
    captured = time.process_time() - begun
    planner = Planner(graph, mesh, Cluster.of(task["cluster"]))
    plan = planner.plan({}, gap=task["gap"], time_limit=task["time_limit"])
    spent = planner.seconds
    own = spent["choices"] + spent["problem"] + spent["solve"]
    gap = 1 - plan.options["bound"] / plan.cost.seconds
    numbers = [captured, spent["choices"], spent["problem"], spent["solve"], spent["baselines"], own]
    print(
        f"{task['layers']:>9}  {task['mesh']:>9}  {len(graph.nodes):>9}  "
        + "  ".join(f"{n:>8.1f}s" for n in numbers)
        + f"  {planner.most_choices:>12}  {plan.cost.seconds:>6.3f}s  {gap:>6.2%}  {plan.cost.peak / 1e9:>4.0f}GB"
        + f"  {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB",
        flush=True,
    )
    for name, line in plan.options["baselines"].items():
        if line is not None:
            fits = "" if line["peak"] <= planner.memory else ", does not fit"
            print(f"{'':>11}{name}: {line['seconds']:.3f}s, {line['peak'] / 1e9:.0f}GB{fits}")
    if task["unfolded"]:
        begun = time.process_time()
        whole = planner.plan({}, alike=False, gap=task["gap"], time_limit=task["time_limit"], compare=False)
        print(
            f"{'':>11}without sharing: {whole.cost.seconds:.3f}s, bound {whole.options['bound']:.3f}s, "
            f"{time.process_time() - begun:.1f} CPU s: sharing loses at most "
            f"{1 - whole.options['bound'] / plan.cost.seconds:.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
