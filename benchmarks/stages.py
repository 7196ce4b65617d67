"""Planning for a number of devices: the mesh, and whether the model runs in stages, are chosen with the layouts.

    python benchmarks/stages.py [--model 405b] [--devices 512] [--mesh pp=8,dp=8,tp=8] [--schedule auto] [--json FILE]

Llama 3 dimensions (fake weights, sequences of 8192, training with Adam, every block computed again in backward). A step
is 8 micro-batches of 32 sequences, as published for 405B on 512 H100. With `--mesh` that mesh is planned instead. CPU
seconds are those of this process.
"""

import argparse
import time
from pathlib import Path

from record import Record, takes_json

import shardwise as sw
from shardwise.modules import module_of
from shardwise.planning import Candidate, Pipeline

MODELS = Path(__file__).parents[1] / "examples" / "models.py"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="405b", choices=["8b", "70b", "405b"])
    parser.add_argument("--devices", type=int, default=512)
    parser.add_argument("--mesh")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32, help="sequences of a micro-batch")
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--recompute", default="full")
    parser.add_argument("--cluster", default="h100")
    parser.add_argument("--time-limit", type=float, default=60.0)
    takes_json(parser)
    options = parser.parse_args()
    model, args, kwargs = getattr(module_of(MODELS), f"llama_{options.model}")(batch=options.batch)
    begun = time.process_time()
    where = {"mesh": options.mesh} if options.mesh else {"devices": options.devices}
    made = sw.plan(
        *(model, args, kwargs),
        **where,
        cluster=options.cluster,
        micro_batches=options.micro_batches,
        schedule=options.schedule,
        recompute=options.recompute,
        time_limit=options.time_limit,
        compare=False,
        confirm=False,
    )
    spent = time.process_time() - begun
    record = Record(__doc__, options.json)
    staged = isinstance(made, Pipeline)
    seconds, peak = (made.seconds, made.peak) if staged else (made.cost.seconds, made.cost.peak)
    columns = {
        "model": "",
        "devices": "{:d}",
        "mesh": "",
        "schedule": "",
        "step": "{:.2f} s",
        "idle": "{:.1%}",
    }
    columns |= {"most memory": "{:.1f} GB", "CPU with capture": "{:.0f} s"}
    table = record.sheet("The plan", columns)
    name = options.model.upper()
    idle = made.time.bubble if staged else 0.0
    schedule = made.schedule if staged else ""
    table.add(name, made.mesh.ranks, str(made.mesh), schedule, seconds, idle, peak / 1e9, spent)
    if staged:
        columns = {"place": "{:d}", "stages": "", "parts": "", "memory": "{:.1f} GB", "busy": "{:.2f} s"}
        table = record.sheet("Its places", columns)
        for place, held in enumerate(made.held):
            own = made.stages_at(place)
            parts = ", ".join(str(made.cuts[n + 1] - made.cuts[n]) for n in own)
            table.add(place, ", ".join(map(str, own)), parts, held / 1e9, made.time.busy[place])
    if made.candidates:
        columns = {"mesh": "", "schedule": "", "step": "{:.2f} s", "idle": "{:.1%}", "": ""}
        table = record.sheet("Meshes that were considered", columns)
        for each in made.candidates:
            table.add(
                each.mesh, each.schedule, each.seconds, each.idle if each.schedule else None, _said(each)
            )
    record.say(made.explain("pp"))


def _said(candidate: Candidate) -> str:
    return candidate.why or ("estimated" if candidate.estimate else "planned")


if __name__ == "__main__":
    main()
