"""`shardwise book`: build the rule book of ATen and look operators up."""

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..errors import UsageError
from ._app import Json, app, print_json
from ._progress import Bars

if TYPE_CHECKING:
    from ..rules import Book

book_app = typer.Typer(
    no_args_is_help=True,
    help="""The rule book of ATen: build it, look an operator up.

    Example: shardwise book show softmax
    """,
)
app.add_typer(book_app, name="book")


@book_app.command("build")
def build_command(
    out: Annotated[Path, typer.Option("--out", help="The directory to write the book to.")] = Path("book"),
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes at a time.")] = 2,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted build.")] = False,
    models: Annotated[
        Path | None,
        typer.Option(
            "--models",
            help="A file of functions build_*() -> (model, args, kwargs), whose models are captured too.",
        ),
    ] = None,
    op: Annotated[
        str, typer.Option("--op", help="Only operators that these OpInfos or models call, with *: linalg_*.")
    ] = "*",
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Study everything, though the shipped book is about another torch."),
    ] = False,
    json: Json = False,
) -> None:
    """Study every operator that torch's OpInfo database calls, forward and backward, and write a book.

    On another torch than the shipped book's, write what differs from it. By default --models is examples/models.py,
    if that file exists.

    Example: shardwise book build --op linalg_cross --out book
    """
    from ..book import build

    if models is not None and not models.is_file():
        raise UsageError(f"there is no file {models} with models to capture")
    usual = Path("examples/models.py")
    chosen = models or (usual if usual.is_file() else None)
    with Bars(quiet=json) as progress:
        counts = build(
            out, workers=workers, resume=resume, models=chosen, pattern=op, whole=whole, progress=progress
        )
    if json:
        print_json({"out": str(out), "counts": counts})
        return
    table = Table("verdict", "operators")
    for verdict, count in counts.items():
        table.add_row(verdict, str(count))
    table.add_row("all", str(sum(counts.values())))
    Console().print(table)


@book_app.command("show")
def show_command(
    op: Annotated[str, typer.Argument(help="softmax, torch.softmax, aten.mm or aten.mm.default.")],
    json: Json = False,
) -> None:
    """Print the book's entry of an operator: its rule, with evidence. --json has the witnesses of its conditions.

    Example: shardwise book show softmax
    """
    from ..rules import book

    entries = [entry for name in book().overloads(op) if (entry := book().entry(name)) is not None]
    if not entries:
        raise UsageError(f"the book has no operator {op!r}: `shardwise discover {op} --sweep` finds its rule")
    if json:
        print_json([entry.to_document() for entry in entries])
        return
    print("\n---\n".join(f"{_tested_on(entry.op)}{entry}" for entry in entries))


def _tested_on(op: str) -> str:
    """A line that says on which versions of torch an entry was tested, where that is not the running one alone."""
    from ..rules import book, stands_on

    running = version("torch").split("+")[0]
    root = book().base or book()
    tested = stands_on(root.folder, op, running)
    return "" if tested == [running] else f"# tested on torch {', '.join(tested)}\n"


@book_app.command("diff")
def diff_command(
    first: Annotated[str, typer.Argument(help="A version of torch that the book knows, or a book's folder.")],
    second: Annotated[str, typer.Argument(help="Another.")],
) -> None:
    """Print what the second book says differently: operators that came (+), went (-) or changed (~).

    Example: shardwise book diff 2.13.0 2.15.0
    """
    from ..book import diff

    print(diff(_named(first), _named(second)))


def _named(name: str) -> "Book":
    from ..rules import SHIPPED, editions, opened

    known = editions(SHIPPED)
    if name in known:
        return known[name]
    if not Path(name).is_dir():
        raise UsageError(f"there is no book {name!r}: give a folder, or one of {', '.join(sorted(known))}")
    return opened(Path(name))
