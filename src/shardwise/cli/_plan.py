"""`shardwise plan`: the cheapest way to run a model on a mesh."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..files import require_writable
from ._app import Json, app, print_json
from ._build import (
    ClusterName,
    Execution,
    LossFn,
    MicroBatches,
    Recompute,
    Zero,
    built,
    loss_function,
    named_sharding,
    policies,
)
from ._progress import Bars

if TYPE_CHECKING:
    from ..graph import Graph


@app.command()
def plan(
    build: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:BUILD",
            help="A function without arguments that returns (model, args, kwargs); or a captured graph, "
            "FILE.json.",
        ),
    ],
    mesh: Annotated[str | None, typer.Option(help="Named axes: dp=8,tp=8.")] = None,
    devices: Annotated[
        int | None,
        typer.Option(help="Try every mesh of this many devices and rank them, instead of --mesh."),
    ] = None,
    cluster: ClusterName = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory limit per device: 80GB. By default all of its memory.")
    ] = None,
    inference: Annotated[bool, typer.Option("--inference", help="Forward only.")] = False,
    execution: Execution = None,
    recompute: Recompute = None,
    loss_fn: LossFn = None,
    optimizer: Annotated[str, typer.Option(help="none, sgd, momentum or adam; adam+master.")] = "adam",
    micro_batches: MicroBatches = 1,
    zero: Zero = False,
    pin: Annotated[
        list[str] | None, typer.Option(help="A required layout: 'x=S(0), R'. May be repeated.")
    ] = None,
    sharding: Annotated[
        list[str] | None,
        typer.Option(help="A sharding to propagate from: 'x=[{dp}, {}]'. May be repeated."),
    ] = None,
    explain: Annotated[str | None, typer.Option(help="A module, node or parameter to explain.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds of search.")] = 60.0,
    confirm: Annotated[
        bool, typer.Option(help="Run each distinct call at a small size with the rows chosen for it.")
    ] = True,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Run collectives beside calls where they can.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write the timeline here, as a trace for chrome://tracing.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan here, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Find the cheapest plan of a model on a mesh, and explain it.

    Example: shardwise plan examples/models.py:build_llama --mesh dp=2,tp=2
    """
    if (mesh is None) == (devices is None):
        raise UsageError("give either --mesh, such as dp=8,tp=8, or --devices, such as 64")
    require_writable(out, trace)
    from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
    from ..planning import Plan, plan_graph

    meshes = [Mesh.parse(mesh)] if mesh is not None else [Mesh.parse(text) for text in _meshes(devices)]
    options: dict[str, Any] = {
        "cluster": Cluster.of(cluster or DEFAULT_CLUSTER),
        "memory": memory,
        "optimizer": optimizer,
        "micro_batches": micro_batches,
        "zero": zero,
        "pin": dict(_pins(pin or [])),
        "shardings": dict(map(named_sharding, sharding or [])),
        "time_limit": time_limit,
        "confirm": confirm,
        "overlap": overlap,
    }
    graph = _graph(build, inference, execution, recompute, loss_fn, as_json)
    ranked: list[tuple[str, Plan | str]] = []
    for each in meshes:
        with Bars(quiet=as_json, title="" if mesh is not None else str(each)) as progress:
            try:
                ranked.append((str(each), plan_graph(graph, mesh=each, progress=progress, **options)))
            except UsageError as error:
                if mesh is not None:
                    raise
                ranked.append((str(each), str(error)))
    made = [(text, found) for text, found in ranked if isinstance(found, Plan)]
    if not made:
        raise UsageError(f"no mesh of {devices} devices has a plan; on {ranked[0][0]}: {ranked[0][1]}")
    made.sort(key=lambda pair: pair[1].cost.seconds)
    best = made[0][1]
    if out is not None:
        best.save(out)
    if trace is not None:
        best.trace(trace)
    if as_json:
        document = best.to_json()
        if devices is not None:
            document["meshes"] = {text: found.cost.seconds for text, found in made}
        print_json(document)
        return
    if devices is not None:
        _print_ranking(ranked)
    typer.echo(best.summary())
    if explain is not None:
        typer.echo("\n" + best.explain(explain))
    if out is not None:
        typer.echo(f"\nwritten to {out}")


def _graph(
    build: str,
    inference: bool,
    execution: Any,
    recompute: list[str] | None,
    loss_fn: str | None,
    quiet: bool,
) -> "Graph":
    from ..graph import Graph, capture

    if build.endswith(".json"):
        graph = Graph.load(Path(build))
        if execution not in (None, graph.execution):
            raise UsageError(
                f"--execution is {execution}, but {build} was captured as {graph.execution}: capture it again"
            )
        if recompute:
            raise UsageError(
                f"--recompute cannot change {build}, which was captured before: capture it again"
            )
        if loss_fn:
            raise UsageError(f"--loss-fn cannot change {build}, which was captured before: capture it again")
        return graph
    with Bars(quiet=quiet) as progress:
        progress("building the model")
        model, args, kwargs = built(build)
        progress("capturing")
        return capture(
            *(model, args, kwargs),
            training=not inference,
            loss_fn=loss_function(loss_fn),
            execution=execution or "eager",
            recompute=policies(recompute),
        )


def _pins(pins: list[str]) -> list[tuple[str, str]]:
    found = []
    for text in pins:
        name, equals, layout = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"pin {text!r} is not of the form 'x=S(0), R'")
        found.append((name.strip(), layout.strip()))
    return found


def _meshes(devices: int | None) -> list[str]:
    """All meshes with one or two axes and this number of devices."""
    if devices is None or devices < 1:
        raise UsageError(f"--devices is {devices}: it must be at least 1")
    inner = [size for size in range(2, devices + 1) if devices % size == 0 and size < devices]
    return [f"dp={devices}", *(f"dp={devices // size},tp={size}" for size in inner)]


def _print_ranking(ranked: list[tuple[str, Any]]) -> None:
    from ..planning import bytes_text, time_text

    good = [(text, found) for text, found in ranked if not isinstance(found, str)]
    for text, found in sorted(good, key=lambda pair: pair[1].cost.seconds):
        typer.echo(f"  {text:<16} {time_text(found.cost.seconds):>10} {bytes_text(found.cost.peak):>10}")
    for text, found in ranked:
        if isinstance(found, str):
            typer.echo(f"  {text:<16} {found}")
    typer.echo("")
