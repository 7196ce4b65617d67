"""The solver on the problems of the ASPLOS / EuroSys 2025 contest: cost, bound and gap, with the published results.

    SHARDWISE_DATA=../shared/data python benchmarks/solver.py [--problems AGMS] [--seeds 3] [--share 1.0]
    SHARDWISE_DATA=../shared/data python benchmarks/solver.py --interrupt 3,10,30
    SHARDWISE_DATA=../shared/data python benchmarks/solver.py --lateness 5,10,20,40,60

Each problem runs under its contest time limit (times `--share`), reading the file included, with one worker per
core. Prints the reductions, the results per seed, and the best cost after a quarter of the time. With `--interrupt` the
command is sent SIGINT after the given seconds, and the time until it ends and its result are printed. With `--lateness`
it runs under each of the given time limits, alone and together with two busy processes, and the time by which the
process exceeds its limit is printed.
"""

import argparse
import csv
import heapq
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from record import Record, Sheet, takes_json

from shardwise.solver import Problem, evaluate, prepare, read_problem, reduce, solve


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", default="", help="letters, all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the contest's time limit")
    parser.add_argument("--interrupt", default="", help="seconds after which to send SIGINT")
    parser.add_argument("--lateness", default="", help="time limits in seconds")
    takes_json(parser)
    options = parser.parse_args()
    folder = Path(os.environ.get("SHARDWISE_DATA", "../shared/data")) / "iopddl"
    with open(folder / "results.csv") as file:
        published = {row["instance"]: row for row in csv.DictReader(file)}
    chosen = [name for name in published if name in (options.problems or "".join(published))]
    prepare()
    record = Record(__doc__, options.json)
    if options.interrupt:
        columns = {"problem": "", "interrupted after": "{:g} s", "ended": "{:.2f} s later", "solution": ""}
        table = record.sheet("Ctrl-C", columns, wide=20)
        for name in chosen:
            for seconds in options.interrupt.split(","):
                table.add(*_interrupt(folder / f"{name}.json.gz", float(seconds)))
        return
    if options.lateness:
        columns = {
            "problem": "",
            "limit": "{:g} s",
            "busy processes": "{:d}",
            "ended": "{:+.2f} s",
            "status": "",
        }
        table = record.sheet("Time limits, and when the process ended", columns)
        for busy in (0, 2):
            with _busy(busy):
                for name in chosen:
                    for limit in options.lateness.split(","):
                        late, status = _lateness(folder / f"{name}.json.gz", float(limit))
                        table.add(name, float(limit), busy, late, status)
        record.say(f"at most {max(row[3] for row in table.rows):.2f} s late in {len(table.rows)} runs")
        return
    columns = {"problem": "", "stage": "", "nodes": "{:,}", "edges": "{:,}", "width": ""}
    stages = record.sheet(
        f"Problem size after reductions (width: of a min-degree elimination, up to {_WIDEST})",
        columns | {"choices": "{:,}", "time points": "{:,}"},
    )
    for name in chosen:
        _reductions(name, read_problem(folder / f"{name}.json.gz"), stages)
    columns = {"problem": ""} | dict.fromkeys(_REFERENCE.values(), "{:,}")
    contest = record.sheet("The contest: costs of the teams and of XLA, and the published bound", columns, 20)
    references = {}
    for name in chosen:
        row = published[name]
        references[name] = {key: int(row[key]) if row[key] else None for key in _REFERENCE}
        contest.add(f"{name} ({row['model']})", *references[name].values())
    columns = {
        "problem": "",
        "seed": "{:d}",
        "status": "",
        "cost": "{:,}",
        "relative to the best team": "{:+.3%}",
    }
    columns |= {"bound": "{:,}", "gap": "{:.3%}", "a quarter of the time": "{:+.3%}", "limit": "{:g} s"}
    results = record.sheet(
        "Shardwise, under the contest's time limits, and the excess of its cost after a quarter of the time",
        columns | {"wall": "{:.0f} s", "CPU": "{:.0f} s"},
    )
    for name in chosen:
        limit = float(published[name]["time_limit_s"]) * options.share
        for seed in range(options.seeds):
            results.add(
                name, seed, *_run(folder / f"{name}.json.gz", limit, seed, references[name]["contest_best"])
            )


_REFERENCE = {
    "contest_best": "best of 20",
    "contest_first": "first",
    "contest_second": "second",
    "contest_third": "third",
    "xla": "XLA",
    "lower_bound": "bound",
}


def _reductions(name: str, problem: Problem, table: Sheet) -> None:
    def show(stage, kernel) -> None:
        points, choices = len(kernel.points), int(kernel.arrays.k.sum())
        table.add(name, stage, int(kernel.nodes), int(kernel.edges), _width(kernel), choices, points)

    begun = time.process_time()
    reduction = reduce(problem, watch=show)
    print(f"{name} in {time.process_time() - begun:.1f} s: {reduction.counts}")


_WIDEST = 40


def _width(kernel) -> str:
    """The largest degree of a node at its elimination, in min-degree order."""
    near: list[set[int]] = [set() for _ in range(kernel.nodes)]
    for a, b in kernel.arrays.ends.tolist():
        near[a].add(b)
        near[b].add(a)
    waiting = [(len(s), v) for v, s in enumerate(near)]
    heapq.heapify(waiting)
    most, gone = 0, [False] * len(near)
    while waiting:
        degree, v = heapq.heappop(waiting)
        if gone[v] or degree != len(near[v]):
            continue
        if degree > _WIDEST:
            return f">{_WIDEST}"
        most = max(most, degree)
        gone[v] = True
        for u in near[v]:
            near[u] |= near[v]
            near[u] -= {u, v}
            heapq.heappush(waiting, (len(near[u]), u))
    return str(most)


def _run(path: Path, limit: float, seed: int, best: int | None) -> tuple[str | int | float | None, ...]:
    begun, cpu = time.monotonic(), time.process_time()
    problem = read_problem(path)
    solution = solve(problem, time_limit=limit - (time.monotonic() - begun), seed=seed)
    seconds, cpu = time.monotonic() - begun, time.process_time() - cpu
    if solution.choices is None:
        return solution.status, None, None, solution.bound, None, None, limit, seconds, cpu
    checked = evaluate(problem, solution.choices)
    assert checked.feasible and checked.cost == solution.cost
    assert best
    early = [line.cost for line in solution.log if line.cost is not None and line.seconds <= limit / 4]
    quarter = early[-1] / checked.cost - 1 if early else None
    return (
        *(solution.status, checked.cost, checked.cost / best - 1, solution.bound, solution.gap, quarter),
        *(limit, seconds, cpu),
    )


def _interrupt(path: Path, after: float) -> tuple[str, float, float, str]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "solution.json"
        command = [
            sys.executable,
            "-m",
            "shardwise",
            "solve",
            str(path),
            "--time-limit",
            "600",
            "--out",
            str(out),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        said = process.communicate()[0].splitlines()
        took = time.monotonic() - begun
        held = evaluate(read_problem(path), json.loads(out.read_text())).feasible if out.exists() else None
        found = {True: said[0] if said else "", False: "invalid", None: "none yet"}[held]
        return path.name.partition(".")[0], after, took, found


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Run `count` busy processes in the background."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _lateness(path: Path, limit: float) -> tuple[float, str]:
    command = [sys.executable, "-m", "shardwise", "solve", str(path), "--time-limit", str(limit)]
    begun = time.monotonic()
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return time.monotonic() - begun - limit, ran.stdout.partition(",")[0].strip()


if __name__ == "__main__":
    main()
