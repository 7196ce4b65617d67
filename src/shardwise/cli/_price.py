"""`shardwise price`: what a step of a model costs in a layout given by name."""

from typing import Annotated, Any

import typer

from ._app import Json, app, print_json
from ._build import Build, ClusterName, Execution, built
from ._progress import Bars


@app.command()
def price(
    build: Build,
    layout: Annotated[
        str,
        typer.Option(
            help="dp=2,fsdp=8,tp=2 with any of zero=1, sequence, split, overlap, reshard=no, micro_batch=1, "
            "recompute=full, reduce=float32; pp=4 with schedule=Interleaved1F1B and stages=2."
        ),
    ],
    mesh: Annotated[
        str | None, typer.Option(help="The same axes in another order, the outermost first.")
    ] = None,
    cluster: ClusterName = None,
    execution: Execution = None,
    optimizer: Annotated[str, typer.Option(help="none, sgd, momentum or adam; adam+master.")] = "adam",
    as_json: Json = False,
) -> None:
    """Price a training step as people already run it: data parallel, ZeRO, FSDP, tensor parallel, pipelines.

    Example: shardwise price examples/models.py:build_llama --layout fsdp=2
    """
    from ..mesh import DEFAULT_CLUSTER
    from ..planning import NamedLayout
    from ..planning import price as price_of

    named = NamedLayout.parse(layout)
    with Bars(quiet=as_json) as progress:
        progress("building the model")
        model, args, kwargs = built(build)
        how: Any = execution or "eager"
        found = price_of(
            model,
            args,
            kwargs,
            layout=named,
            mesh=mesh,
            cluster=cluster or DEFAULT_CLUSTER,
            execution=how,
            optimizer=optimizer,
            progress=progress,
        )
    if as_json:
        print_json(found.to_json())
        return
    typer.echo(str(found))
