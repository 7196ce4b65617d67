"""Planning at production size: CPU seconds by phase, nodes, choices, gap and memory of the process.

    python benchmarks/planning.py [--model 8b] [--layers 1,2,4,8,16,32] [--mesh dp=8,tp=8] [--unfolded] [--overlap]

Llama 3 dimensions (Hugging Face `LlamaForCausalLM`, fake weights, sequence 8192, two sequences for each rank of the
first axis, training with Adam). Each line runs in its own process, so that memory is measured separately. `--unfolded`
also solves the problem without sharing choices among layers: its bound holds for every plan, and so bounds the loss.
`--confirm` also plans with confirmation by experiment, with an empty cache and again with what that kept there; CPU
seconds of the processes that run experiments are included. `--overlap` plans for collectives beside calls as well.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import Record, takes_json

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
    parser.add_argument("--confirm", action="store_true")
    parser.add_argument("--overlap", action="store_true", help="with collectives beside calls, and without")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    takes_json(parser)
    options = parser.parse_args()
    if options.one:
        _plan_one(json.loads(options.one))
        return
    deepest = {"8b": 32, "70b": 80}[options.model]
    tasks = [
        {**vars(options), "json": None, "mesh": mesh, "layers": layers}
        for mesh in options.mesh or ["dp=8,tp=8"]
        for layers in [int(n) for n in options.layers.split(",") if n] or [deepest]
    ]
    record = Record(__doc__, options.json)
    columns = {"model": "", "layers": "{:d}", "mesh": "", "nodes": "{:,}", "most choices": "{:,}"}
    columns |= dict.fromkeys(("capture", "choices", "problem", "solve", "sum without capture"), "{:.1f} s")
    columns |= {"four baselines": "{:.1f} s", "gap": "{:.2%}", "memory of the process": "{:.1f} GiB"}
    table = record.sheet("Planning, CPU seconds", columns)
    results = []
    for task in tasks:
        command = [sys.executable, __file__, "--one", json.dumps(task)]
        results.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        table.add(options.model.upper(), task["layers"], task["mesh"], *results[-1]["numbers"])
    columns = {"mesh": "", "plan": "", "step": "{:.3f} s", "memory": "{:.0f} GB", "fits": ""}
    table = record.sheet(f"The plans, on {options.cluster}", {"layers": "{:d}", **columns})
    for task, result in zip(tasks, results, strict=True):
        for line in result["plans"]:
            table.add(task["layers"], task["mesh"], *line)
    for line in [result["unfolded"] for result in results if result["unfolded"]]:
        record.say(line)
    if options.overlap:
        columns = {
            "layers": "{:d}",
            "mesh": "",
            "plan": "",
            "step": "{:.3f} s",
            "at least": "{:.3f} s",
            "gap": "{:.1%}",
        }
        columns |= {"collectives": "{:.3f} s", "hidden": "{:.0%}", "memory": "{:.0f} GB"}
        table = record.sheet(f"Collectives beside calls, on {options.cluster}", columns)
        for task, result in zip(tasks, results, strict=True):
            for line in result["overlap"]["plans"]:
                table.add(task["layers"], task["mesh"], *line)
        for task, result in zip(tasks, results, strict=True):
            own, plain, captured = (result["overlap"][name] for name in ("seconds", "plain", "capture"))
            record.say(
                f"{task['layers']} layers on {task['mesh']}: {own:.1f} CPU seconds with overlap, {plain:.1f} without, "
                f"baselines included; with {captured:.1f} of capture {(own + captured) / (plain + captured):.2f} times."
            )
    if options.confirm:
        kinds = dict.fromkeys(("without", "with", "with, cached"), "{:.1f} s")
        columns = {"layers": "{:d}", "mesh": "", **kinds, "confirmed": "{:d}", "undecided": "{:d}"}
        table = record.sheet("Planning with confirmation, CPU seconds", columns)
        for task, result in zip(tasks, results, strict=True):
            table.add(task["layers"], task["mesh"], *result["confirmed"])


def _plan_one(task: dict) -> None:
    sys.path.insert(0, str(EXAMPLES))
    import models

    from shardwise.graph import capture
    from shardwise.mesh import Cluster, Mesh
    from shardwise.planning import Planner

    mesh = Mesh.parse(task["mesh"])
    build = {"8b": models.llama_8b, "70b": models.llama_70b}[task["model"]]
    begun = time.process_time()
    model, args, kwargs = build(task["layers"], batch=2 * mesh.shape[0])
    graph = capture(model, args, kwargs)
    captured = time.process_time() - begun
    planner = Planner(graph, mesh, Cluster.of(task["cluster"]))
    begun = time.process_time()
    plan = planner.plan({}, gap=task["gap"], time_limit=task["time_limit"])
    alone = time.process_time() - begun
    spent = planner.seconds
    own = spent["choices"] + spent["problem"] + spent["solve"]
    gap = 1 - plan.bound / plan.cost.seconds
    numbers = [len(graph.nodes), planner.most_choices]
    numbers += [captured, spent["choices"], spent["problem"], spent["solve"], own, spent["baselines"], gap]
    numbers.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    plans = [("this plan", plan.cost.seconds, plan.cost.peak)]
    plans += [(name, b.seconds, b.peak) for name, b in plan.baselines.items() if b]
    lines = [(n, s, peak / 1e9, "yes" if peak <= planner.memory else "no") for n, s, peak in plans]
    unfolded = None
    if task["unfolded"]:
        begun = time.process_time()
        whole = planner.plan(
            {}, share_layers=False, gap=task["gap"], time_limit=task["time_limit"], compare=False
        )
        unfolded = (
            f"{task['layers']} layers on {task['mesh']}, each planned separately: "
            f"{whole.cost.seconds:.3f} s, bound {whole.bound:.3f} s, in "
            f"{time.process_time() - begun:.1f} CPU seconds more; sharing choices loses at most "
            f"{1 - whole.bound / plan.cost.seconds:.2%}."
        )
    confirmed = _confirmed(planner, task) if task["confirm"] else None
    overlap = None
    if task["overlap"]:
        overlap = {**_overlapped(planner, task, plan), "plain": alone, "capture": captured}
    found = {
        "numbers": numbers,
        "plans": lines,
        "unfolded": unfolded,
        "confirmed": confirmed,
        "overlap": overlap,
    }
    print(json.dumps(found))


def _overlapped(planner, task: dict, plain) -> dict:
    """Plans with collectives beside calls: the best, that without overlap overlapped afterwards, and baselines."""
    from shardwise.planning import Planner

    begun = time.process_time()
    fresh = Planner(planner.graph, planner.mesh, planner.cluster, overlap=True)
    made = fresh.plan({}, gap=task["gap"], time_limit=task["time_limit"])
    seconds = time.process_time() - begun
    plans = [("this plan", made.cost), ("planned without, overlapped", plain.overlapped().cost)]
    plans += [(name, cost) for name, cost in made.baselines.items() if cost]
    lines = []
    for name, cost in plans:
        sent = sum(cost.communication.values())
        gap = 1 - made.bound / cost.seconds
        lines.append(
            [name, cost.seconds, made.bound, gap, sent, cost.hidden / sent if sent else 0.0, cost.peak / 1e9]
        )
    return {"plans": lines, "seconds": seconds}


def _confirmed(planner, task: dict) -> list:
    """CPU seconds of planning without confirmation, with it, and with it again by what was kept."""
    from shardwise.experiments import Confirmations
    from shardwise.planning import Planner

    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for confirmations in (None, *(Confirmations(Path(folder), here={}) for _ in range(2))):
            begun = _cpu_seconds()
            fresh = Planner(planner.graph, planner.mesh, planner.cluster)
            options = {"gap": task["gap"], "time_limit": task["time_limit"]}
            plan = fresh.plan({}, confirm=confirmations is not None, confirmations=confirmations, **options)
            seconds.append(_cpu_seconds() - begun)
    return [*seconds, plan.confirmation.confirmed, plan.confirmation.undecided]


def _cpu_seconds() -> float:
    """Of this process and those that it started."""
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in times)


if __name__ == "__main__":
    main()
