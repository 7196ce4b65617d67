"""`shardwise solve`: the cheapest choice per node for a problem file."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..files import require_writable, write_text
from ._app import Json, app, print_json, timed
from ._progress import Bars

if TYPE_CHECKING:
    from ..solver import Improvement, Problem, Solution

_ENDING = 0.3  # seconds of the limit, at most, in which the solution is written and the process ends


@app.command()
def solve(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            help="The problem: FILE.json or FILE.json.gz, as in the ASPLOS / EuroSys 2025 contest."
        ),
    ],
    time_limit: Annotated[float, typer.Option(help="Seconds of the whole command.")] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="Write the solution here: a JSON list, one integer per node.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    max_iterations: Annotated[
        int | None, typer.Option(help="Limit of search rounds; the result then depends only on the seed.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Search threads; by default all cores, at most 8.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose the cheapest strategy per node under a memory limit. Ctrl-C returns the best solution so far.

    The solution is checked by an independent evaluator before it is written.

    Example: shardwise solve examples/solve/three.json --out solution.json
    """
    process = timed(context)
    if not time_limit > 0:
        raise UsageError(f"--time-limit is {time_limit}: it must be a positive number of seconds.")
    require_writable(out)
    from ..solver import Solution, in_time, read_problem
    from ..solver import solve as search

    deadline = process.begun + time_limit - min(_ENDING, time_limit / 10)

    def left() -> float:
        return max(0.001, deadline - time.monotonic())

    def tell(line: "Improvement") -> None:
        known = "" if line.gap is None else f"  gap {line.gap:.3%}"
        note = "" if line.cost is None else f"best {line.cost:,}{known}"
        progress("searching", limit=left(), note=note)

    late = "the time limit was reached before the file was read"
    solution = Solution("unknown", None, None, None, None, time_limit, reason=late)
    with Bars(quiet=as_json) as progress:
        progress("reading", limit=left())
        problem = in_time(lambda: read_problem(file), deadline)
        if problem is not None:
            progress("searching", limit=left())
            solution = search(
                problem,
                time_limit=left(),
                seed=seed,
                max_iterations=max_iterations,
                workers=workers,
                progress=tell,
            )
    if problem is not None and solution.choices is not None and out is not None:
        write_checked(problem, solution, out)
    if as_json:
        print_json(_document(solution, str(file), out))
    else:
        _say(solution, problem, out)
    if solution.choices is None:
        raise typer.Exit(1)


def write_checked(problem: "Problem", solution: "Solution", out: Path) -> None:
    """Write the choices of a solution, after evaluating them against the problem itself."""
    from ..solver import evaluate

    assert solution.choices is not None
    checked = evaluate(problem, solution.choices)
    if not checked.feasible or checked.cost != solution.cost:
        raise AssertionError(f"the solution is invalid, nothing was written: {checked}")
    write_text(out, json.dumps(solution.choices) + "\n")


def _document(solution: "Solution", file: str, out: Path | None) -> dict[str, Any]:
    lacking = solution.shortfall
    return {
        "problem": file,
        "status": solution.status,
        "cost": solution.cost,
        "bound": solution.bound,
        "gap": solution.gap,
        "peak": solution.peak,
        "seconds": round(solution.seconds, 3),
        "choices": solution.choices,
        "out": None if out is None or solution.choices is None else str(out),
        "log": [
            {"seconds": round(line.seconds, 3), "cost": line.cost, "bound": line.bound}
            for line in solution.log
        ],
        "reason": solution.reason,
        "shortfall": None
        if lacking is None
        else {
            "at_least": lacking.at_least,
            "enough": lacking.enough,
            "interval": lacking.interval,
            "forbidden": lacking.forbidden,
        },
    }


def _say(solution: "Solution", problem: "Problem | None", out: Path | None) -> None:
    if problem is None or solution.choices is None:
        print(f"{solution.status}: {solution.shortfall or solution.reason}.")
        return
    bound = "none" if solution.bound is None else f"{solution.bound:,} (gap {solution.gap:.3%})"
    memory = f"{solution.peak:,} of {problem.usage_limit:,}"
    print(f"{solution.status}: cost {solution.cost:,}, bound {bound}, peak memory {memory}")
    if out is not None:
        print(f"written to {out}")
