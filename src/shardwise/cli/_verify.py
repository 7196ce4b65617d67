"""`shardwise verify`: compare a run of a plan with the unsharded model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UsageError
from ._app import Json, app, print_json
from ._build import (
    Build,
    ClusterName,
    Execution,
    LossFn,
    MicroBatches,
    NumberOfStages,
    Offload,
    Recompute,
    Reduce,
    Schedule,
    SplitProducts,
    Zero,
    builder,
    built,
    loss_function,
    policies,
)
from ._progress import Bars


@app.command()
def verify(
    build: Build,
    mesh: Annotated[str | None, typer.Option(help="Named axes: dp=2,tp=2.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="A plan from `shardwise plan --out`; by default the model is planned.")
    ] = None,
    cluster: ClusterName = None,
    inference: Annotated[bool, typer.Option("--inference", help="Forward only, in eval mode.")] = False,
    execution: Execution = None,
    recompute: Recompute = None,
    split_products: SplitProducts = False,
    loss_fn: LossFn = None,
    micro_batches: MicroBatches = 1,
    zero: Zero = False,
    reduce: Reduce = None,
    offload: Offload = False,
    schedule: Schedule = "1F1B",
    stages: NumberOfStages = None,
    backend: Annotated[
        str, typer.Option(help="simulate: all ranks in this process; gloo: one process per rank.")
    ] = "simulate",
    steps: Annotated[int, typer.Option(min=0, help="Optimizer steps.")] = 1,
    optimizer: Annotated[str, typer.Option(help="sgd or adamw.")] = "sgd",
    double: Annotated[bool, typer.Option("--double", help="In float64, on simulated ranks.")] = False,
    random: Annotated[
        int, typer.Option(min=0, help="Verify this many random plans instead of the cheapest.")
    ] = 0,
    only_plan: Annotated[
        bool,
        typer.Option("--only-plan", help="Without a second plan that shards as much as possible."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of weights, arguments and dropout.")] = 0,
    as_json: Json = False,
) -> None:
    """Run a plan and the unsharded model, and compare.

    Compares outputs, gradients, parameters after optimizer steps, collectives
    with priced ones and peak memory with the predicted one; then the same for a
    plan that shards as much as possible. Exit status 0 only if all agree.

    Example: shardwise verify examples/models.py:build_mlp --mesh dp=2,tp=2
    """
    import torch

    from ..graph import capture, reduced_dtype, with_reduced_gradients
    from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
    from ..planning import AXIS, load_plan, memory_of, plan_graph, plan_pipeline, random_plan
    from ..verification import verify as run

    if plan is not None and random:
        raise UsageError("--random and --plan exclude each other: give one of them")
    if plan is None and mesh is None:
        raise UsageError(
            "give either --mesh, such as dp=2,tp=2, or --plan, a file written by `shardwise plan --out`"
        )
    outside = loss_function(loss_fn)
    torch.manual_seed(seed)
    with Bars(quiet=as_json) as progress:
        progress("building the model")
        model, args, kwargs = built(build)
        if plan is not None:
            plans: list[Any] = [load_plan(plan)]
            if mesh is not None and plans[0].mesh != Mesh.parse(mesh):
                raise UsageError(
                    f"the plan is for mesh {plans[0].mesh}, not for {mesh}: omit --mesh, or plan again"
                )
        else:
            progress("capturing")
            how: Any = execution or "eager"
            given: Any = {"execution": how, "recompute": policies(recompute)}
            on = Mesh.parse(str(mesh))
            given |= {"boundaries": AXIS in on, "split_products": split_products}
            graph = capture(model, args, kwargs, training=not inference, loss_fn=outside, **given)
            passes: Any = {"micro_batches": micro_batches, "zero": zero}
            prices = Cluster.of(cluster or DEFAULT_CLUSTER)
            if AXIS in on:
                if random or inference or offload:
                    raise UsageError(
                        f"--random, --inference and --offload cannot be combined with the axis {AXIS}"
                    )
                options: Any = {
                    **passes,
                    "reduce": reduce,
                    "schedule": schedule,
                    "stages": stages,
                    "progress": progress,
                }
                plans = [
                    plan_pipeline(graph, mesh=on, cluster=prices, memory=memory_of(None, prices), **options)
                ]
            elif random:
                graph = with_reduced_gradients(graph, reduced_dtype(reduce), summed=micro_batches > 1)
                plans = [
                    random_plan(graph, mesh=str(mesh), seed=number, offload=offload, **passes)
                    for number in range(random)
                ]
            else:
                options = {
                    **passes,
                    "reduce": reduce,
                    "offload": offload,
                    "compare": False,
                    "progress": progress,
                }
                plans = [plan_graph(graph, mesh=str(mesh), cluster=prices, **options)]
        reports = []
        for number, chosen in enumerate(plans):
            progress.title = f"plan {number + 1} of {len(plans)}" if random else ""
            reports.append(
                run(
                    *(model, args, kwargs),
                    plan=chosen,
                    loss_fn=outside,
                    steps=steps,
                    optimizer=optimizer,
                    double=double,
                    backend=backend,
                    only_plan=only_plan or bool(random),
                    seed=seed,
                    build=builder(build),
                    progress=progress,
                )
            )
    if as_json:
        documents = [report.to_json() for report in reports]
        print_json(documents if random else documents[0])
    else:
        typer.echo("\n\n".join(map(str, reports)))
    raise typer.Exit(0 if all(report.ok for report in reports) else 1)
