"""Commands that pages show without running them: each is there, takes those options, and names files that exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from shardwise.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = re.compile(
    r"^(?:    |\$ |.*\| `)((?:shardwise(?= )|python (?:benchmarks|examples)/[^\s`]+)(?: (?:[^#\n\\`]|\\\n)*)?)",
    re.MULTILINE,
)
COMMANDS = [
    (page.name, shlex.split(found.replace("\\\n", " ")))
    for page in PAGES
    for found in SHOWN.findall(page.read_text())
]


@pytest.fixture(scope="module")
def shardwise():
    return typer.main.get_command(app)


def test_there_are_commands_to_look_at():
    assert len(COMMANDS) > 30
    assert {page for page, _ in COMMANDS} >= {"README.md", "planning.md", "discovery.md", "results.md"}


@pytest.mark.parametrize(("page", "words"), [pytest.param(*c, id=" ".join(c[1])[:60]) for c in COMMANDS])
def test_a_command_could_be_run(shardwise, page, words):
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    if words[0] == "python":
        script = ROOT / words[1]
        text = script.read_text() + (ROOT / "benchmarks" / "record.py").read_text()
        assert all(f'"{option}"' in text for option in options)
        return
    command = shardwise
    for word in words[1:]:
        if not hasattr(command, "commands") or word.startswith("--"):
            break
        command = command.commands[word]
    known = {name for parameter in command.params for name in parameter.opts}
    assert options <= known | {"--help"}
    for word in words[2:]:
        if word.startswith(("examples/", "benchmarks/")):
            assert (ROOT / word.partition(":")[0]).exists()
