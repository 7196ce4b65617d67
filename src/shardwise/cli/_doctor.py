"""`shardwise doctor`: what there is to know about a model before it is planned."""

from typing import Annotated, Any

import typer

from ._app import Json, app, print_json
from ._build import Build, ClusterName, Execution, LossFn, built, loss_function
from ._progress import Bars


@app.command()
def doctor(
    build: Build,
    mesh: Annotated[str, typer.Option(help="Named axes.")] = "dp=2,tp=2",
    cluster: ClusterName = None,
    inference: Annotated[bool, typer.Option("--inference", help="Forward only, in eval mode.")] = False,
    execution: Execution = None,
    loss_fn: LossFn = None,
    as_json: Json = False,
) -> None:
    """Say what a plan of a model is going to meet: what capture leaves out, operators without a rule, planning time.

    Example: shardwise doctor examples/models.py:build_lstm
    """
    from ..mesh import DEFAULT_CLUSTER
    from ..planning import doctor as examine

    with Bars(quiet=as_json) as progress:
        progress("building the model")
        model, args, kwargs = built(build)
        how: Any = execution or "eager"
        found = examine(
            *(model, args, kwargs),
            mesh=mesh,
            cluster=cluster or DEFAULT_CLUSTER,
            training=not inference,
            loss_fn=loss_function(loss_fn),
            execution=how,
            progress=progress,
        )
    if as_json:
        print_json(found.to_json())
        return
    typer.echo(str(found))
