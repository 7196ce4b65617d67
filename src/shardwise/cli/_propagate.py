"""`shardwise propagate`: propagate shardings through a program or a model to a fixed point."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ._app import Json, app, print_json
from ._build import built, named_sharding
from ._progress import Bars

if TYPE_CHECKING:
    from ..graph import Graph
    from ..propagation import Propagation


@app.command()
def propagate(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A program as JSON, or one per line, gzipped or not; FILE.py:BUILD, a function that returns "
            "(model, args, kwargs); or a captured graph, FILE.json.",
        ),
    ],
    mesh: Annotated[str | None, typer.Option(help="Of a model or a graph, named axes: dp=2,tp=4.")] = None,
    sharding: Annotated[
        list[str] | None,
        typer.Option(help="Of a model's or graph's tensor, by name: 'x=[{dp}, {}]'. May be repeated."),
    ] = None,
    module: Annotated[
        str | None, typer.Option(help="Draw the calls of this module of a model or graph; '' for all.")
    ] = None,
    inference: Annotated[bool, typer.Option("--inference", help="Of a model: forward only.")] = False,
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
    """Propagate shardings through a program or a model, along the factors of its operations, to a fixed point.

    Example: shardwise propagate examples/propagate/mlp.json --trace
    """
    graph = _graph(file, inference, as_json)
    if graph is None:
        if mesh is not None or sharding or module is not None:
            raise UsageError(f"{file} has programs with their meshes and shardings: give no others")
        _cases(Path(file), level, case, sweeps, trace, as_json)
    else:
        _through(graph, mesh, sharding or [], module, level, sweeps, trace, as_json)


def _graph(file: str, inference: bool, quiet: bool) -> "Graph | None":
    """The graph of a model or in a file; None for a file of programs."""
    from ..files import named, parse_json, read_text
    from ..graph import Graph, capture, is_graph

    if ":" in file:
        with Bars(quiet=quiet) as progress:
            progress("building the model")
            model, args, kwargs = built(file)
            progress("capturing")
            return capture(model, args, kwargs, training=not inference)
    try:
        document = parse_json(read_text(Path(file)))
    except UsageError:
        return None  # one program per line, or a file that is no document: reading its programs says so
    if not is_graph(document):
        return None
    with named(Path(file)):
        return Graph.from_json(document)


def _through(
    graph: "Graph",
    mesh: str | None,
    given: list[str],
    module: str | None,
    level: str | None,
    sweeps: int | None,
    trace: bool,
    as_json: bool,
) -> None:
    from ..propagation import GraphPropagation
    from ..propagation import propagate as run

    shardings = dict(map(named_sharding, given))
    outcome = run(
        graph,
        mesh=mesh,
        shardings=shardings,
        level=level or "user-priority",  # type: ignore[arg-type]
        debug=trace,
        sweeps=sweeps,
    )
    assert isinstance(outcome, GraphPropagation)
    if as_json:
        print_json(_document({"id": graph.name}, outcome, []))
    elif module is not None:
        typer.echo(outcome.table(module))
    else:
        typer.echo(_text({"id": graph.name}, outcome, []))


def _cases(
    file: Path, level: str | None, case: str | None, sweeps: int | None, trace: bool, as_json: bool
) -> None:
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
