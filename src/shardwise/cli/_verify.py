"""`shardwise verify`: a plan, run, equals the unsharded model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UsageError
from ._app import Json, app, print_json
from ._build import Build, built, loaded_files


@app.command()
def verify(
    build: Build,
    mesh: Annotated[str | None, typer.Option(help="Named axes: dp=2,tp=2.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="A plan from `shardwise plan --out`; else one is made.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="What the plan is made for, if one is made.")] = "h100",
    inference: Annotated[
        bool, typer.Option("--inference", help="Forward alone, the model in eval mode.")
    ] = False,
    backend: Annotated[
        str, typer.Option(help="simulate: all ranks in this process; gloo: a process each.")
    ] = "simulate",
    steps: Annotated[int, typer.Option(min=0, help="Optimizer steps.")] = 1,
    optimizer: Annotated[str, typer.Option(help="sgd or adamw.")] = "sgd",
    double: Annotated[
        bool, typer.Option("--double", help="In double precision, on simulated ranks.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of weights, arguments and dropout.")] = 0,
    as_json: Json = False,
) -> None:
    """Run a plan and the unsharded model and compare: outputs, gradients, parameters after optimizer steps, the
    collectives that were priced, the memory that was predicted. The exit status is 0 only if all agree.

    Example: shardwise verify examples/models.py:build_mlp --mesh dp=2,tp=2 --steps 3
    """
    import torch

    from .. import Plan
    from .. import plan as make_plan
    from .. import verify as run

    if plan is None and mesh is None:
        raise UsageError(
            "give either --mesh, such as dp=2,tp=2, or --plan, a file that `shardwise plan` wrote"
        )
    torch.manual_seed(seed)
    model, args, kwargs = built(build)
    chosen: Any = Plan.load(plan) if plan is not None else None
    if chosen is None:
        chosen = make_plan(model, args, kwargs, mesh=mesh, cluster=cluster, training=not inference)
    elif mesh is not None and str(chosen.mesh) != mesh.replace(" ", ""):
        raise UsageError(
            f"the plan is for mesh {chosen.mesh}, not for {mesh}: leave out --mesh, or plan again"
        )
    report = run(
        *(model, args, kwargs, chosen),
        steps=steps,
        optimizer=optimizer,
        double=double,
        backend=backend,
        seed=seed,
        files=loaded_files(),
    )
    if as_json:
        print_json(report.to_json())
    else:
        typer.echo(str(report))
    raise typer.Exit(0 if report.ok else 1)
