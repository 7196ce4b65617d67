"""`shardwise plan`: the cheapest way to run a model on a mesh."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..files import require_writable, write_text
from ._app import Json, app, print_json
from ._build import (
    ClusterName,
    Execution,
    LossFn,
    NumberOfStages,
    Offload,
    Recompute,
    Reduce,
    Schedule,
    SplitProducts,
    Zero,
    built,
    loss_function,
    named_sharding,
    policies,
)
from ._progress import Bars

if TYPE_CHECKING:
    from ..graph import Graph
    from ..planning import Front, Pipeline, Plan
    from ..progress import Progress


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
        typer.Option(help="Choose among the meshes of this many devices, instead of --mesh."),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(
            help="Samples of a step: micro-batches, and unless --recompute is given what is computed again, are "
            "chosen with the plan."
        ),
    ] = None,
    front: Annotated[
        bool, typer.Option("--front", help="Plan for less and less memory, too, until no plan fits.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option(help="Write the front of time over memory here, as HTML.")
    ] = None,
    cluster: ClusterName = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory limit per device: 80GB. By default all of its memory.")
    ] = None,
    inference: Annotated[bool, typer.Option("--inference", help="Forward only.")] = False,
    execution: Execution = None,
    recompute: Recompute = None,
    split_products: SplitProducts = False,
    loss_fn: LossFn = None,
    optimizer: Annotated[str, typer.Option(help="none, sgd, momentum or adam; adam+master.")] = "adam",
    micro_batches: Annotated[
        int | None,
        typer.Option(
            "--micro-batches",
            min=1,
            help="Passes of a step: each with arguments like those given, and gradients added up. By default 1, or "
            "as the plan chooses for --global-batch.",
            show_default=False,
        ),
    ] = None,
    zero: Zero = False,
    reduce: Reduce = None,
    offload: Offload = False,
    schedule: Schedule = "1F1B",
    stages: NumberOfStages = None,
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
    if page is not None and not front:
        raise UsageError("--page is for the front of time over memory: give --front, too")
    require_writable(out, trace, page)
    from ..mesh import DEFAULT_CLUSTER, Cluster
    from ..planning import (
        AXIS,
        best_plan,
        chosen,
        memory_of,
        meshes_of,
        require_stages,
    )

    prices = Cluster.of(cluster or DEFAULT_CLUSTER)
    most = memory_of(memory, prices)
    meshes = meshes_of(devices, mesh)
    if global_batch is not None and not recompute and not inference and execution in (None, "eager"):
        recompute = ["auto"]
    alone: dict[str, Any] = {"--inference": inference, "--sharding": sharding, "--overlap": overlap}
    alone |= {"--front": front, "--offload": offload, "--trace": trace}
    if AXIS in meshes[0]:
        require_stages(alone)
    found: Front | None = None
    with Bars(quiet=as_json) as progress:
        options: dict[str, Any] = {
            "of_planner": {
                "cluster": prices,
                "optimizer": optimizer,
                "zero": zero,
                "reduce": reduce,
                "offload": offload,
                "overlap": overlap,
                "progress": progress,
            },
            "of_search": {
                "pins": dict(_pins(pin or [])),
                "shardings": dict(map(named_sharding, sharding or [])),
                "time_limit": time_limit,
            },
            "compare": True,
            "confirm": confirm,
        }

        def graphs_with(boundaries: bool) -> "tuple[list[int], Callable[[int], Graph]]":
            return _graphs(
                *(build, inference, execution, recompute, split_products, loss_fn),
                *(global_batch, micro_batches, progress),
                boundaries=boundaries,
            )

        made: Plan | Pipeline
        if front:
            passes, graph_of = graphs_with(False)
            found = chosen(graph_of, meshes, passes, [most], falling=True, **options)
            made = found.best
        else:
            captured = build.endswith(".json") and AXIS not in meshes[0]  # without boundaries between stages
            made = best_plan(
                graphs_with,
                mesh=mesh,
                devices=devices,
                memory=most,
                execution=execution or "eager",
                alone={**alone, build: captured},
                schedule=schedule,
                stages=stages,
                **options,
            )
    _show(made, found, out=out, trace=trace, page=page, as_json=as_json, explain=explain)


def _show(
    made: "Plan | Pipeline",
    found: "Front | None",
    *,
    out: Path | None,
    trace: Path | None,
    page: Path | None,
    as_json: bool,
    explain: str | None,
) -> None:
    """Write and print a plan, with the front of which it is the best."""
    from ..planning import Plan

    if out is not None:
        made.save(out)
    if trace is not None and isinstance(made, Plan):
        made.trace(trace)
    if page is not None and found is not None:
        from ..report import prose_page

        write_text(page, prose_page(found.blocks()))
    if as_json:
        print_json({**made.to_json(), **({} if found is None else found.to_json())})
        return
    if found is not None:
        typer.echo(f"{found}\n")
    typer.echo(made.summary() if isinstance(made, Plan) else str(made))
    if explain is not None:
        typer.echo("\n" + made.explain(explain))
    for path in (out, page):
        if path is not None:
            typer.echo(f"\nwritten to {path}")


def _graphs(
    build: str,
    inference: bool,
    execution: Any,
    recompute: list[str] | None,
    split_products: bool,
    loss_fn: str | None,
    global_batch: int | None,
    micro_batches: int | None,
    progress: "Progress",
    boundaries: bool = False,
) -> "tuple[list[int], Callable[[int], Graph]]":
    """In how many passes a step may be run, and the graph of a pass by their number."""
    from ..graph import Graph, capture
    from ..planning import graphs

    if build.endswith(".json"):
        if global_batch is not None:
            raise UsageError(
                f"--global-batch cannot change {build}, which was captured before: give FILE.py:build"
            )
        if boundaries:
            raise UsageError(f"{build} was captured without boundaries between stages: give FILE.py:build")
        graph = Graph.load(Path(build))
        given = {"--recompute": recompute, "--split-products": split_products, "--loss-fn": loss_fn}
        _require_unchanged(build, graph, execution, given)
        return [micro_batches or 1], lambda _: graph
    progress("building the model")
    model, args, kwargs = built(build)

    def captured(*given: Any) -> Graph:
        progress("capturing")
        return capture(
            *given,
            training=not inference,
            loss_fn=loss_function(loss_fn),
            execution=execution or "eager",
            recompute=policies(recompute),
            split_products=split_products,
            boundaries=boundaries,
        )

    return graphs(model, args, kwargs, global_batch, micro_batches, captured)


def _require_unchanged(build: str, graph: "Graph", execution: Any, others: Mapping[str, Any]) -> None:
    if execution not in (None, graph.execution):
        raise UsageError(
            f"--execution is {execution}, but {build} was captured as {graph.execution}: capture it again"
        )
    for option, given in others.items():
        if given:
            raise UsageError(f"{option} cannot change {build}, which was captured before: capture it again")


def _pins(pins: list[str]) -> list[tuple[str, str]]:
    found = []
    for text in pins:
        name, equals, layout = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"pin {text!r} is not of the form 'x=S(0), R'")
        found.append((name.strip(), layout.strip()))
    return found
