"""The application: one typer app, one sentence for a user's mistake, one JSON document under `--json`."""

import json
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from ..errors import UsageError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")

# The shared option of every command.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

# Modules of commands, in the order in which the help lists them.
_COMMANDS: tuple[str, ...] = (
    *("_discover", "_book", "_audit", "_propagate", "_solve", "_capture", "_plan", "_verify", "_report"),
    "_calibrate",
)


@app.callback()
def _about() -> None:
    """Find out how PyTorch operators may be sharded, and shard whole models."""


def print_json(document: Any) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def main() -> None:
    for name in _COMMANDS:
        import_module(f"{__package__}.{name}")
    try:
        app(_with_bare_options(sys.argv[1:]))
    except UsageError as error:
        sys.stderr.write(f"shardwise: {error}\n")
        sys.exit(2)


def _with_bare_options(arguments: list[str]) -> list[str]:
    """`--sweep` may stand alone or take a value; alone it gets an empty one."""
    following = [*arguments[1:], "-"]
    return [
        "--sweep=" if word == "--sweep" and "=" not in after else word
        for word, after in zip(arguments, following, strict=True)
    ]
