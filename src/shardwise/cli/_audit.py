"""`shardwise audit`: DTensor's own rules tested by experiment."""

import os
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..files import made_folder, read_text, require_writable, write_text
from ._app import Json, app, print_json
from ._progress import Bars

# How many missing rows and unsupported overloads a terminal shows.
_SHOWN = 20


@app.command("audit")
def audit_command(
    op: Annotated[
        str, typer.Option("--op", help="An OpInfo or overload name, with *: linalg.*, aten.any.dim.")
    ] = "*",
    html: Annotated[Path | None, typer.Option("--html", help="Write one HTML file.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write one Markdown file.")] = None,
    pages: Annotated[
        Path | None,
        typer.Option("--pages", help="A folder: write a page per overload whose rule is wrong."),
    ] = None,
    refuted: Annotated[
        Path | None,
        typer.Option("--refuted", help="A folder: write the list of wrong rows, TORCH.yaml, into it."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes at a time.")] = 1,
    samples: Annotated[
        int, typer.Option("--samples", min=1, help="How many calls of each overload to audit.")
    ] = 4,
    designed: Annotated[
        int, typer.Option("--designed", min=0, help="How many calls of each to design from those.")
    ] = 24,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", help="A file for what is found; an audit that was stopped goes on with it."),
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option("--beside", help="That file of another torch: test its findings here, and compare."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare DTensor's rules with experiment: wrong, missing and unsupported.

    A wrong rule comes with a script, which has been run, in which DTensor computes a wrong number. Besides torch's
    samples, calls are audited that are designed from them to refute what DTensor claims.

    Example: shardwise audit --op linalg.vector_norm
    """
    from ..auditing import audit, read_audit
    from ..report import audit_issues, audit_markdown, audit_page

    listed = None if refuted is None else refuted / f"{version('torch').split('+')[0]}.yaml"
    if pages is not None:
        made_folder(pages)
    require_writable(html, markdown, listed, None if pages is None else pages / "index.md")
    other = None if beside is None else read_audit(beside)
    with Bars(quiet=json) as progress:
        found = audit(
            op, jobs=jobs, samples=samples, designed=designed, keep=keep, beside=other, progress=progress
        )
    if listed is not None:
        write_text(listed, found.refuted_yaml())
    if html is not None:
        write_text(html, audit_page(found, _as_given(), other))
    if markdown is not None:
        folder = None if pages is None else os.path.relpath(pages, markdown.parent)
        write_text(markdown, audit_markdown(found, _as_given(), other, folder))
    if pages is not None:
        _write_pages(pages, audit_issues(found))
    if json:
        print_json(found.to_json())
    else:
        _print(found)


def _write_pages(folder: Path, pages: dict[str, str]) -> None:
    """A page for each overload; those of overloads that are no longer wrong are removed, and no other file."""
    from ..report import ISSUE

    for old in folder.glob("*.md"):
        if old.stem not in pages and read_text(old).startswith(f"# {ISSUE} {old.stem}\n"):
            old.unlink()
    for op, text in pages.items():
        write_text(folder / f"{op}.md", text)


def _as_given() -> str:
    """The command line."""
    return shlex.join(["shardwise", *sys.argv[1:]])


def _print(found: Any) -> None:
    console = Console()
    console.print(str(found))
    if found.wrong:
        table = _table("wrong", "row", "registered as", "output of its script")
        for w in found.wrong:
            table.add_row(w.op, w.row + (f"\n{w.when}" if w.when else ""), w.kind, w.output.strip())
        console.print(table)
        console.print(f"\nThe script for {found.wrong[0].op} {found.wrong[0].row}:\n", highlight=False)
        console.print(found.wrong[0].script, markup=False, highlight=False, soft_wrap=True)
    if found.missing:
        table = _table("missing", "row", "MB", "DTensor instead")
        for m in found.missing[:_SHOWN]:
            table.add_row(m.op, m.text, f"{m.bytes / 1e6:.3g}", m.instead)
        _print_some(console, table, len(found.missing))
    if found.unsupported:
        table = _table("unsupported", "why")
        for u in found.unsupported[:_SHOWN]:
            table.add_row(u.op, u.reason)
        _print_some(console, table, len(found.unsupported))


def _print_some(console: Console, table: Table, number: int) -> None:
    console.print(table)
    if number > _SHOWN:
        console.print(f"and {number - _SHOWN} more: use --json, --html or --markdown for all")


def _table(*head: str) -> Table:
    table = Table()
    for title in head:
        table.add_column(title, overflow="fold")
    return table
