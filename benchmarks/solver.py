"""The solver against the ASPLOS / EuroSys 2025 contest: cost, bound and gap beside the published results.

    SHARDWISE_DATA=../shared/data python benchmarks/solver.py [--problems AGMS] [--seeds 3] [--share 1.0]
    SHARDWISE_DATA=../shared/data python benchmarks/solver.py --interrupt 3,10,30

Each problem runs under its contest time limit (times `--share`), reading the file included, with one worker per
core. Prints the reductions, the results per seed, and what a quarter of the time had already found. With
`--interrupt` the command line is sent SIGINT after so many seconds, and what is printed is how long it then took to
end, and with what.
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
from pathlib import Path

from shardwise.solve import Problem, evaluate, read_problem, reduce, solve


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", default="", help="letters, all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the contest's time limit")
    parser.add_argument("--interrupt", default="", help="seconds after which to send SIGINT")
    options = parser.parse_args()
    folder = Path(os.environ.get("SHARDWISE_DATA", "../shared/data")) / "iopddl"
    with open(folder / "results.csv") as file:
        published = {row["instance"]: row for row in csv.DictReader(file)}
    chosen = [name for name in published if name in (options.problems or "".join(published))]
    _warm_up()
    if options.interrupt:
        for name in chosen:
            for seconds in options.interrupt.split(","):
                _interrupt(folder / f"{name}.json.gz", float(seconds))
        return
    print(
        f"Reductions: nodes, edges and width (of a min-degree elimination, up to {_WIDEST}) after each stage"
    )
    for name in chosen:
        _reductions(name, read_problem(folder / f"{name}.json.gz"))
    print("\nResults: cost against the contest's best; bound against the published one")
    for name in chosen:
        row = published[name]
        reference = {key: int(row[key]) if row[key] else None for key in _REFERENCE}
        print(f"\n{name} ({row['model']}), {row['time_limit_s']} s: " + _line(reference))
        for seed in range(options.seeds):
            _run(
                name, folder / f"{name}.json.gz", float(row["time_limit_s"]) * options.share, seed, reference
            )


_REFERENCE = ("contest_best", "contest_first", "contest_second", "contest_third", "xla", "lower_bound")


def _line(reference: dict[str, int | None]) -> str:
    return ", ".join(f"{key} {'-' if value is None else f'{value:,}'}" for key, value in reference.items())


def _warm_up() -> None:
    """Load the compiled code (compile it, on the first run ever) on a problem that uses all of it."""
    begun = time.monotonic()
    k, n = 3, 60
    problem = Problem.build(
        costs=[[(7 * i + 5 * c) % 11 for c in range(k)] for i in range(n)],
        usages=[[(3 * i + 4 * c) % 7 for c in range(k)] for i in range(n)],
        intervals=[[i, i + 6] for i in range(n)],
        edges=[[i, i + step] for step in (1, 2, 5) for i in range(n - step)],
        tables=[[(i * c * d + c + 2 * d) % 13 for c in range(k) for d in range(k)] for i in range(3 * n - 8)],
        usage_limit=16,
    )
    solve(problem, time_limit=5)
    print(f"warm-up {time.monotonic() - begun:.1f} s (once per process; compiling, on the first run ever)\n")


def _reductions(name: str, problem: Problem) -> None:
    def show(stage, kernel) -> None:
        points, choices = len(kernel.points), int(kernel.arrays.k.sum())
        print(
            f"{name} {stage:32} {kernel.nodes:7,} nodes {kernel.edges:7,} edges  width {_width(kernel):>4}"
            f"  {choices:8,} choices {points:7,} time points"
        )

    begun = time.process_time()
    reduction = reduce(problem, watch=show)
    print(f"{name} in {time.process_time() - begun:.1f} s: {reduction.counts}")


_WIDEST = 40


def _width(kernel) -> str:
    """The most neighbours that a node has when it is eliminated, fewest first."""
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


def _run(name: str, path: Path, limit: float, seed: int, reference: dict[str, int | None]) -> None:
    begun, cpu = time.monotonic(), time.process_time()
    problem = read_problem(path)
    solution = solve(problem, time_limit=limit - (time.monotonic() - begun), seed=seed)
    seconds, cpu = time.monotonic() - begun, time.process_time() - cpu
    if solution.choices is None:
        print(f"  seed {seed}: {solution.status} after {seconds:.1f} s")
        return
    checked = evaluate(problem, solution.choices)
    assert checked.feasible and checked.cost == solution.cost
    best, bound = reference["contest_best"], reference["lower_bound"]
    assert best and bound
    early = [line.cost for line in solution.log if line.cost is not None and line.seconds <= limit / 4]
    quarter = f"{early[-1] / checked.cost - 1:+.3%}" if early else "none yet"
    print(
        f"  seed {seed}: {solution.status} {checked.cost:,} ({checked.cost / best - 1:+.3%})  "
        f"bound {solution.bound:,} ({(solution.bound or 0) / bound - 1:+.3%})  gap {solution.gap:.3%}  "
        f"after a quarter {quarter}  {seconds:.1f} s wall, {cpu:.1f} s CPU",
        flush=True,
    )


def _interrupt(path: Path, after: float) -> None:
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
        print(
            f"{path.name} after {after:g} s: ended {took:.2f} s later, feasible {held}: {said[0] if said else ''}"
        )


if __name__ == "__main__":
    main()
