"""`shardwise report`: a plan as an HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from ..files import require_writable, write_text
from ._app import Json, app, print_json
from ._progress import Bars


@app.command()
def report(
    path: Annotated[
        Path, typer.Argument(metavar="PLAN.json", help="A plan, written by `shardwise plan --out`.")
    ],
    out: Annotated[Path | None, typer.Option(help="The page; by default the plan's path with .html.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Without the alternatives of each call.")] = False,
    as_json: Json = False,
) -> None:
    """Write a plan as one self-contained HTML file.

    Example: shardwise plan examples/models.py:build_mlp --mesh dp=2 --out p.json

    Example: shardwise report p.json --out p.html
    """
    from ..planning import Pipeline, load_plan
    from ..report import document, plan_page, prose_page

    plan = load_plan(path)
    page = out or path.with_suffix(".html")
    if isinstance(plan, Pipeline):
        if as_json:
            print_json(plan.to_json())
            return
        require_writable(page)
        write_text(page, prose_page(plan.blocks()))
        typer.echo(f"written to {page}")
        return
    if as_json:
        print_json(document(plan, runners_up=not quick))
        return
    require_writable(page)
    with Bars() as progress:
        text = plan_page(plan, runners_up=not quick, progress=progress)
    write_text(page, text)
    typer.echo(f"written to {page}")
