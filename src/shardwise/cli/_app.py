"""The application: one typer app, one sentence for a user's mistake, one JSON document under `--json`."""

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.models import CommandInfo

from ..errors import UsageError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")

# The shared option of every command.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

# Users' questions, and the commands that answer them, in the order in which the help lists them.
_QUESTIONS: dict[str, tuple[str, ...]] = {
    "How may this operator be sharded?": ("discover", "check", "book"),
    "Are DTensor's own rules correct?": ("audit",),
    "How should this model be sharded, and does the plan compute the same result?": (
        "doctor",
        "plan",
        "price",
        "report",
        "verify",
    ),
    "How is a tensor laid out, and how do shardings propagate?": ("show", "propagate"),
    "What graph, which optimum, how fast a device?": ("capture", "solve", "calibrate"),
}


@app.callback()
def _about() -> None:
    """Find out how PyTorch operators may be sharded, and shard whole models.

    Example: shardwise plan examples/models.py:build_llama --mesh dp=2,tp=2
    """


def print_json(document: Any) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


@dataclass
class Process:
    """When the process began, on the clock of `time.monotonic`, and whether it must exit immediately."""

    begun: float
    at_once: bool = False


def main() -> None:
    """The process `shardwise`."""
    process = Process(_process_start())
    status = run(sys.argv[1:], process)
    if process.at_once:
        # Python would first deallocate every object, which takes seconds if there are millions.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def run(arguments: list[str], process: Process | None = None) -> int:
    """Run one command in this process; its exit status."""
    _ask()
    try:
        app(_with_bare_options(arguments), obj=process)
    except UsageError as error:
        sys.stderr.write(f"shardwise: {error}\n")
        return 2
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def timed(context: typer.Context) -> Process:
    """For a command with a time limit, which covers its whole process."""
    process = context.obj or Process(time.monotonic())
    process.at_once = True
    return process


def _process_start() -> float:
    """When this process began, where the system provides it; else now."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except OSError:
        return time.monotonic()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age


def _ask() -> None:
    """Group every command under the question that it answers, in the order of the questions."""
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
    """`--sweep` takes an optional value; without one it gets an empty value."""
    following = [*arguments, "-"][1:]
    return [
        "--sweep=" if word == "--sweep" and ("=" not in after or after.startswith("-")) else word
        for word, after in zip(arguments, following, strict=True)
    ]
