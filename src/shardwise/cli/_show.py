"""`shardwise show`: draw a layout, or a cluster."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import UsageError
from ..files import require_writable, write_text
from ._app import Json, app, print_json


@app.command()
def show(
    what: Annotated[
        str, typer.Argument(help='One placement per mesh axis: "S(0), R"; or "[{dp}, {tp}]"; or: cluster.')
    ],
    name: Annotated[str | None, typer.Argument(help="The cluster: a preset or a JSON file.")] = None,
    mesh: Annotated[str | None, typer.Option(help="Named axes: dp=2,tp=4.")] = None,
    shape: Annotated[str | None, typer.Option(help="The tensor's shape: 8,8.")] = None,
    dims: Annotated[str | None, typer.Option(help="The two dims to draw: 0,2.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the cluster here, as one HTML file.")] = None,
    as_json: Json = False,
) -> None:
    """Draw which ranks hold which shard of a tensor, or how fast a cluster is.

    Example: shardwise show "S(0), S(1)" --mesh dp=2,tp=4 --shape 8,8
    Example: shardwise show cluster h100
    """
    if what == "cluster":
        _show_cluster(name, html, as_json)
        return
    if name is not None or html is not None:
        raise UsageError(
            f"a layout is drawn from one argument, --mesh and --shape: what else is {name or html}?"
        )
    if mesh is None or shape is None:
        raise UsageError("a layout is drawn on a mesh and for a shape: give --mesh dp=2,tp=4 and --shape 8,8")
    _show_layout(what, mesh, shape, dims, as_json)


def _show_cluster(name: str | None, html: Path | None, as_json: bool) -> None:
    from ..display import as_text
    from ..mesh import Cluster, cluster_blocks, cluster_numbers
    from ..report import prose_page

    if name is None:
        raise UsageError(f"which cluster? Use one of {', '.join(Cluster.presets())}, or a JSON file")
    require_writable(html)
    cluster = Cluster.of(name)
    if html is not None:
        write_text(html, prose_page(cluster_blocks(cluster)))
    if as_json:
        print_json(cluster_numbers(cluster))
        return
    typer.echo(as_text(cluster_blocks(cluster)))


def _show_layout(layout: str, mesh: str, shape: str, dims: str | None, as_json: bool) -> None:
    from ..layout import Layout, Sharding
    from ..mesh import Mesh
    from ..report import picture_of, pieces

    on = Mesh.parse(mesh)
    by_dim = layout.lstrip().startswith("[")
    placed = Sharding.parse(layout, on).to_layout() if by_dim else Layout.parse(layout, on)
    sizes = _numbers("--shape", shape)
    drawn = None if dims is None else _numbers("--dims", dims)
    if drawn is not None and len(drawn) != 2:
        raise UsageError(f"--dims {dims!r} has {len(drawn)} dims: give two, such as 0,2")
    if as_json:
        held = pieces(placed, sizes)
        print_json({"layout": str(placed), "mesh": str(on), "shape": list(sizes), "ranks": held})
        return
    console = Console()
    console.print(picture_of(placed, sizes, None if drawn is None else (drawn[0], drawn[1])))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"{option} {text!r} is not of the form 8,8") from None
    if any(number < 0 for number in numbers):
        raise UsageError(f"{option} {text!r} has a negative number")
    return numbers
