"""`shardwise show`: draw a layout."""

from typing import Annotated

import typer
from rich.console import Console

from ..errors import UsageError
from ._app import Json, app, print_json


@app.command()
def show(
    layout: Annotated[str, typer.Argument(help='One placement per mesh axis: "S(0), R"; or "[{dp}, {tp}]".')],
    mesh: Annotated[str, typer.Option(help="Named axes: dp=2,tp=4.")],
    shape: Annotated[str, typer.Option(help="The tensor's shape: 8,8.")],
    dims: Annotated[str | None, typer.Option(help="The two dims to draw: 0,2.")] = None,
    as_json: Json = False,
) -> None:
    """Draw which ranks hold which shard of a tensor.

    Example: shardwise show "S(0), S(1)" --mesh dp=2,tp=4 --shape 8,8
    """
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
