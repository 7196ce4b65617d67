"""The application: one typer app, one sentence for a user's mistake, one JSON document under `--json`."""

import json
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.models import CommandInfo

from ..errors import UsageError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")

# The shared option of every command.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

# Modules of commands.
_COMMANDS: tuple[str, ...] = (
    *("_discover", "_book", "_audit", "_propagate", "_solve", "_capture", "_plan", "_verify", "_report"),
    *("_calibrate", "_show"),
)

# What a user wants to know, and the commands that answer it, in the order in which the help lists them.
_QUESTIONS: dict[str, tuple[str, ...]] = {
    "How may this operator be sharded?": ("discover", "check", "book"),
    "Are DTensor's own rules right?": ("audit",),
    "How should this model be sharded, and does that work?": ("plan", "report", "verify"),
    "Where does a sharding lead, and what does it look like?": ("show", "propagate"),
    "What lies underneath?": ("capture", "solve", "calibrate"),
}


@app.callback()
def _about() -> None:
    """Find out how PyTorch operators may be sharded, and shard whole models.

    Example: shardwise plan examples/models.py:build_llama --mesh dp=2,tp=2
    """


def print_json(document: Any) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def main() -> None:
    for name in _COMMANDS:
        import_module(f"{__package__}.{name}")
    _ask()
    try:
        app(_with_bare_options(sys.argv[1:]))
    except UsageError as error:
        sys.stderr.write(f"shardwise: {error}\n")
        sys.exit(2)


def _ask() -> None:
    """Lists every command under the question that it answers, in the order of the questions."""
    names = [(name, question) for question, asked in _QUESTIONS.items() for name in asked]
    question, order = dict(names), {name: i for i, (name, _) in enumerate(names)}

    def name_of(command: CommandInfo) -> str:
        return str(command.name or getattr(command.callback, "__name__", ""))

    app.registered_commands.sort(key=lambda command: order.get(name_of(command), len(order)))
    for command in app.registered_commands:
        command.rich_help_panel = question.get(name_of(command), "More")
    for group in app.registered_groups:
        group.rich_help_panel = question.get(group.name or "", "More")


def _with_bare_options(arguments: list[str]) -> list[str]:
    """`--sweep` may stand alone or take a value; alone it gets an empty one."""
    following = [*arguments, "-"][1:]
    return [
        "--sweep=" if word == "--sweep" and ("=" not in after or after.startswith("-")) else word
        for word, after in zip(arguments, following, strict=True)
    ]
