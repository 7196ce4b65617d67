"""The help of every command: it fits 80 columns, and each example in it works as printed."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from shardwise.cli import app, run

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"^ *Example: (shardwise .*?) *$", re.MULTILINE)
STATUS = {"check": 1}  # its example is a row that is refuted
LONG = {"audit", "book build", "calibrate"}


@pytest.fixture
def shardwise(monkeypatch, capsys):
    def call(line):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("TERMINAL_WIDTH", "80")
        status = run(shlex.split(line)[1:])
        return status, capsys.readouterr().out

    return call


def commands(groups=False):
    """Every command and sub-command by the words that call it; or the groups of them."""

    def walk(command, words):
        for name, part in getattr(command, "commands", {}).items():
            yield from walk(part, [*words, name])
        if hasattr(command, "commands") == groups:
            yield " ".join(words)

    return sorted(walk(typer.main.get_command(app), []))


def test_the_command_alone_lists_every_command_under_a_question(shardwise):
    _, out = shardwise("shardwise")
    for name in commands():
        assert re.search(rf"^│ {name.split()[0]} ", out, re.MULTILINE)
    assert "How may this operator be sharded?" in out
    assert "─ More ─" not in out


@pytest.mark.parametrize("command", [*commands(groups=True), *commands()])
def test_help_fits_and_has_an_example(shardwise, command):
    status, out = shardwise(f"shardwise {command} --help")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert EXAMPLE.search(out)


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=pytest.mark.long) if c in LONG else c for c in commands()],
)
def test_every_example_works_as_printed(shardwise, command, tmp_path, monkeypatch):
    _, out = shardwise(f"shardwise {command} --help")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for example in EXAMPLE.findall(out):
        status, printed = shardwise(example)
        assert status == STATUS.get(command, 0), example
        assert max(map(len, printed.splitlines())) <= 80, example


def test_the_example_of_the_command_itself_is_that_of_plan(shardwise):
    _, own = shardwise("shardwise --help")
    _, plan = shardwise("shardwise plan --help")
    assert EXAMPLE.findall(own) == EXAMPLE.findall(plan)


def test_the_example_of_the_book_is_that_of_showing_an_operator(shardwise):
    _, own = shardwise("shardwise book --help")
    _, show = shardwise("shardwise book show --help")
    assert EXAMPLE.findall(own) == EXAMPLE.findall(show)
