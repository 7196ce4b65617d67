"""`shardwise solve`: a problem file in, one choice per node out."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..files import require_writable, write_text
from ._app import Json, app, print_json
from ._progress import Bars

if TYPE_CHECKING:
    from ..solver import Progress, Solution


@app.command()
def solve(
    file: Annotated[
        Path,
        typer.Argument(
            help="The problem: FILE.json or FILE.json.gz, as in the ASPLOS / EuroSys 2025 contest."
        ),
    ],
    time_limit: Annotated[float, typer.Option(help="Seconds from now, reading the file included.")] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="Write the solution here: a JSON list, one integer per node.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Different seeds search differently.")] = 0,
    max_iterations: Annotated[
        int | None, typer.Option(help="Rounds of search; with it the result depends on the seed alone.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Threads of search; all cores, at most 8, by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose the cheapest strategy per node under a memory limit. Ctrl-C ends with the best so far.

    The solution is checked by an independent evaluator before it is written.

    Example: shardwise solve examples/solve/three.json --out solution.json
    """
    begun = time.monotonic()
    if not time_limit > 0:
        raise UsageError(f"--time-limit is {time_limit}: it must be a positive number of seconds.")
    require_writable(out)
    from ..solver import evaluate, read_problem
    from ..solver import solve as search

    with Bars(quiet=as_json) as progress:
        progress("reading")
        problem = read_problem(file)
        left = max(0.01, time_limit - (time.monotonic() - begun))

        def tell(line: "Progress") -> None:
            known = "" if line.gap is None else f"  gap {line.gap:.3%}"
            note = "" if line.cost is None else f"best {line.cost:,}{known}"
            progress("searching", limit=left, note=note)

        progress("searching", limit=left)
        solution = search(
            problem, time_limit=left, max_iterations=max_iterations, seed=seed, workers=workers, progress=tell
        )
    if solution.choices is not None and out is not None:
        checked = evaluate(problem, solution.choices)
        if not checked.feasible or checked.cost != solution.cost:
            raise AssertionError(f"the solution does not hold, nothing was written: {checked}")
        write_text(out, json.dumps(solution.choices) + "\n")
    if as_json:
        print_json(_document(solution, str(file), out))
    else:
        _say(solution, problem.usage_limit, out)
    if solution.choices is None:
        raise typer.Exit(1)


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
        "shortfall": None
        if lacking is None
        else {
            "at_least": lacking.at_least,
            "enough": lacking.enough,
            "interval": lacking.interval,
            "forbidden": lacking.forbidden,
        },
    }


def _say(solution: "Solution", limit: int, out: Path | None) -> None:
    if solution.choices is None:
        print(f"{solution.status}: {solution.shortfall or 'no solution was found in the time given'}.")
        return
    bound = "none" if solution.bound is None else f"{solution.bound:,} (gap {solution.gap:.3%})"
    memory = f"{solution.peak:,} of {limit:,}"
    print(f"{solution.status}: cost {solution.cost:,}, bound {bound}, peak memory {memory}")
    if out is not None:
        print(f"written to {out}")
