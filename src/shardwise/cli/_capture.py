"""`shardwise capture`: capture a model as one graph."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..files import require_writable
from ._app import Json, app, print_json
from ._build import Build, Execution, LossFn, Recompute, SplitProducts, built, loss_function, policies
from ._progress import Bars


@app.command()
def capture(
    build: Build,
    inference: Annotated[bool, typer.Option("--inference", help="Forward only, in eval mode.")] = False,
    loss: Annotated[
        str | None, typer.Option(help="The output that backward starts from; see the summary for names.")
    ] = None,
    execution: Execution = None,
    recompute: Recompute = None,
    split_products: SplitProducts = False,
    loss_fn: LossFn = None,
    table: Annotated[bool, typer.Option("--table", help="Also print every node.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the graph here, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Capture a model, forward and backward, as one graph. Its weights need no memory.

    Example: shardwise capture examples/models.py:build_mlp --out mlp.json
    """
    require_writable(out)
    from ..graph import capture as run

    with Bars(quiet=as_json) as progress:
        progress("building the model")
        model, args, kwargs = built(build)
        progress("capturing")
        how: Any = execution or "eager"
        graph = run(
            *(model, args, kwargs),
            training=not inference,
            loss=loss,
            loss_fn=loss_function(loss_fn),
            execution=how,
            recompute=policies(recompute),
            split_products=split_products,
        )
    if out is not None:
        graph.save(out)
    if as_json:
        print_json(graph.to_json())
        return
    typer.echo(str(graph))
    if table:
        typer.echo("\n" + graph.table())
    if out is not None:
        typer.echo(f"\nwritten to {out}")
