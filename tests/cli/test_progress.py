"""Progress: at a terminal a line for each stage with the time left; elsewhere, and under --json, nothing."""

import io
import json
import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

from shardwise.cli._progress import Bars


@pytest.fixture
def drawn():
    """What the lines look like now, on a terminal of 80 columns."""

    def look(bars):
        console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
        console.print(bars.lines.get_renderable())
        return [line.rstrip() for line in console.file.getvalue().splitlines()]

    return look


@pytest.fixture
def bars():
    now = [0.0]
    terminal = Console(width=80, file=io.StringIO(), force_terminal=True)
    made = Bars(console=terminal)
    made.lines.get_time = lambda: now[0]
    made.clock = now
    return made


def test_counted_steps_tell_the_time_that_is_left(bars, drawn):
    for step in range(5):
        bars("studying", step, 20)
        bars.clock[0] += 1.5
    [line] = drawn(bars)
    assert "studying" in line
    assert line.endswith("0:24 left")


def test_a_time_limit_counts_down_by_itself(bars, drawn):
    bars("searching", limit=90.0, note="best 1,200  gap 0.5%")
    bars.clock[0] += 25.0
    [line] = drawn(bars)
    assert "best 1,200  gap 0.5%" in line
    assert line.endswith("1:05 left")


def test_what_cannot_be_known_has_the_time_taken(bars, drawn):
    bars("capturing")
    bars.clock[0] += 75.0
    assert drawn(bars)[0].endswith(" 1:15")


def test_a_stage_that_is_over_keeps_its_time(bars, drawn):
    bars("capturing")
    bars.clock[0] += 7.0
    bars("choices", 0, 10)
    bars.clock[0] += 60.0
    first, second = drawn(bars)
    assert first.startswith("✓ capturing") and first.endswith(" 0:07")
    assert second.split()[1] == "choices" and not second.startswith("✓")


def test_a_stage_may_be_counted_again(bars, drawn):
    for step in (5, 10, 1):
        bars("studying", step, 10)
        bars.clock[0] += 1.0
    [line] = drawn(bars)
    assert not line.startswith("✓")


@pytest.mark.parametrize("quiet", [True, False])
def test_nothing_is_written_without_a_terminal_or_where_it_would_be_in_the_way(quiet):
    file = io.StringIO()
    with Bars(quiet=quiet, console=Console(file=file, force_terminal=quiet)) as progress:
        progress("searching", limit=5.0)
        progress("studying", 1, 2)
    assert file.getvalue() == ""


COMMAND = ("discover", "torch.softmax", "--shape", "4,6", "--kw", "dim=1")


def on_a_terminal(*arguments):
    """Runs the command with stderr on a terminal; gives what came on stdout and what was drawn."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "shardwise", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # how Linux says that the other end is closed
                break
            shown += part
        printed = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0
    return printed.decode(), shown.decode()


def test_a_command_draws_on_a_terminal_and_prints_elsewhere():
    printed, shown = on_a_terminal(*COMMAND)
    assert "running experiments" in shown
    assert "running experiments" not in printed and "S(0) -> S(0)" in printed


def test_a_command_that_prints_json_draws_nothing():
    printed, shown = on_a_terminal(*COMMAND, "--json")
    assert shown == ""
    assert json.loads(printed)["rows"]
