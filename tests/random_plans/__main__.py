"""The command `python -m tests.random_plans`: verify random plans and print those that are wrong.

python -m tests.random_plans --more 36 --plans 10 --meshes a=2,b=2 a=3,b=2 --ahead 100000 --jobs 16 --kept FILE

Each model on each mesh is a task, in a process of its own. What came of it is added to the file of `--kept` as soon as
it is known; a later run with the same file does what is missing, and what did not end in time.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .models import MODELS
from .verifying import MESHES, models, verified


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.random_plans",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--plans", type=int, default=20, help="of each model on each mesh")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument(
        "--more", type=int, default=0, metavar="N", help="so many of benchmarks/architectures.py as well"
    )
    parser.add_argument("--meshes", nargs="*", default=list(MESHES))
    parser.add_argument("--ahead", type=int, help="bytes of collectives under way beside calls")
    parser.add_argument("--jobs", type=int, default=1, help="tasks at a time")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="of each task")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no task after these")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="where outcomes are kept, to go on from")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(_verify(json.loads(given.one))))
        return 0
    if given.more:
        others = [name for name in models() if name not in MODELS]
        given.models += others[:: max(1, len(others) // given.more)][: given.more]
    same = {"plans": given.plans, "first": given.first, "ahead": given.ahead}
    tasks = [{"model": model, "mesh": mesh, **same} for model in given.models for mesh in given.meshes]
    known = _known(given.kept)
    waiting = [task for task in tasks if json.dumps(task) not in known]
    end = time.monotonic() + 60 * given.minutes

    def run(task: dict[str, Any]) -> None:
        if time.monotonic() < end:
            told = _run(task, given.timeout)
            known[json.dumps(task)] = told
            if given.kept is not None:
                given.kept.parent.mkdir(parents=True, exist_ok=True)
                with given.kept.open("a") as file:
                    file.write(json.dumps({"task": task, **told}) + "\n")
            print(_line(task, told), flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(run, waiting))
    return _report([(task, known.get(json.dumps(task))) for task in tasks])


def _known(kept: Path | None) -> dict[str, dict[str, Any]]:
    """What came of each task before, unless it did not end."""
    lines = kept.read_text().splitlines() if kept is not None and kept.exists() else []
    found = [json.loads(line) for line in lines]
    return {json.dumps(each["task"]): each for each in found if not each.get("ended")}


def _run(task: dict[str, Any], timeout: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.random_plans", "--one", json.dumps(task)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired:
        return {"ended": f"not in {timeout:.0f} s"}
    if done.returncode:
        return {"ended": f"with status {done.returncode}: {done.stderr[-2000:]}"}
    return json.loads(done.stdout.splitlines()[-1])


def _verify(task: dict[str, Any]) -> dict[str, Any]:
    begun = time.process_time()
    seeds = range(task["first"], task["first"] + task["plans"])
    told: dict[str, Any] = {"plans": 0, "sharded": 0, "calls": 0, "collectives": 0, "begun": 0, "wrong": []}
    for found in verified(task["model"], [task["mesh"]], seeds, task["ahead"]):
        report = found.report
        told["plans"] += 1
        told["sharded"], told["calls"] = told["sharded"] + report.sharded, told["calls"] + report.calls
        told["collectives"] += len(report.collectives)
        told["begun"] += found.begun
        if not report.ok:
            told["wrong"].append(f"seed {found.seed}\n{report}")
    return {**told, "seconds": time.process_time() - begun}


def _line(task: dict[str, Any], told: dict[str, Any]) -> str:
    where = f"{task['model']} on {task['mesh']}"
    if told.get("ended"):
        return f"{where}: ended {told['ended']}"
    wrong = "".join(f"\nwrong: {where}, {each}" for each in told["wrong"])
    return f"{where}: {told['plans']} plans, {len(told['wrong'])} wrong, {told['seconds']:.0f} CPU s{wrong}"


def _report(outcomes: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> int:
    done = [told for _, told in outcomes if told is not None and not told.get("ended")]
    plans, sharded, calls, collectives, begun = (
        sum(told[name] for told in done) for name in ("plans", "sharded", "calls", "collectives", "begun")
    )
    wrong = sum(len(told["wrong"]) for told in done)
    print(
        f"{plans:,} plans, {wrong} wrong; {sharded:,} of {calls:,} calls sharded, {collectives:,} collectives, "
        f"{begun:,} moves beside calls; {len(outcomes) - len(done)} of {len(outcomes)} tasks without an outcome"
    )
    return 1 if wrong or len(done) < len(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
