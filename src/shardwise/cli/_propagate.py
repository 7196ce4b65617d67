"""`shardwise propagate`: propagate shardings through a program to a fixed point."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ._app import Json, app, print_json

if TYPE_CHECKING:
    from ..propagation import Propagation


@app.command()
def propagate(
    file: Annotated[Path, typer.Argument(help="One program as JSON, or one per line; may be gzipped.")],
    level: Annotated[
        str | None,
        typer.Option(help="basic, aggressive, op-priority or user-priority; by default that of the file."),
    ] = None,
    case: Annotated[str | None, typer.Option(help="Only the program with this id.")] = None,
    sweeps: Annotated[
        int | None,
        typer.Option(help="Limit of sweeps per stage; Shardy makes one. By default to the fixed point."),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print each step: which axis was propagated where, and why.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Propagate shardings through a program, along the factors of its operations, to a fixed point.

    Example: shardwise propagate examples/propagate/mlp.json --trace
    """
    from ..propagation import level_of, mismatches, program_of, read_cases
    from ..propagation import propagate as run

    documents = []
    for document in read_cases(file):
        if case is not None and document.get("id") != case:
            continue
        given = document if level is None else {**document, "level": level}
        outcome = run(program_of(document), level=level_of(given), debug=trace, sweeps=sweeps)
        wrong = mismatches(document, outcome) if level is None else []
        documents.append(_document(document, outcome, wrong))
        if not as_json:
            typer.echo(_text(document, outcome, wrong))
    if not documents:
        raise UsageError(f"{file} contains no program" + (f" with id {case!r}" if case else ""))
    if as_json:
        print_json(documents)


def _text(case: dict[str, Any], outcome: "Propagation", wrong: list[str]) -> str:
    lines = [f"{case['id']} ({outcome.level})" if "id" in case else outcome.level]
    if outcome.trace is not None:
        lines += [str(outcome.trace), ""]
    lines += [str(outcome), outcome.summary, *(f"not as expected: {line}" for line in wrong), ""]
    return "\n".join(lines)


def _document(case: dict[str, Any], outcome: "Propagation", wrong: list[str]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": case.get("id"),
        "level": outcome.level,
        "shardings": {name: sharding.to_json() for name, sharding in outcome.shardings.items()},
        "results": [sharding.to_json() for sharding in outcome.results],
        "sweeps": outcome.sweeps,
        "updates": outcome.updates,
        "complete": outcome.complete,
        "mismatches": wrong,
    }
    if outcome.trace is not None:
        document["trace"] = outcome.trace.to_json()
    return document
