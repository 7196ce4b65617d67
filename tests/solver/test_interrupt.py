"""Ctrl-C ends a search with its best solution, from the library and from the command line."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from shardwise.solver import evaluate, read_problem

_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def hard_problem(tmp_path, layers):
    """A problem that is not solved to the end within a minute."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(layers(400, seed=5, limit=0.3).to_json()))
    return path


def test_the_library_returns_its_best(hard_problem):
    script = (
        "import sys, json\n"
        "from shardwise.solver import read_problem, solve\n"
        "def say(line):\n"
        "    if line.cost is not None: print('found', file=sys.stderr, flush=True)\n"
        f"solution = solve(read_problem({str(hard_problem)!r}), time_limit=250, progress=say)\n"
        "print(json.dumps([solution.status, solution.cost, solution.choices]))\n"
    )
    status, cost, choices = json.loads(_interrupt([sys.executable, "-c", script], "found"))
    result = evaluate(read_problem(hard_problem), choices)
    assert status == "feasible" and result.feasible and result.cost == cost


def test_it_may_come_while_a_lock_is_taken(hard_problem):
    script = (
        "import signal\n"
        "from shardwise.solver import _exchange, read_problem, solve\n"
        "class Exchange(_exchange.Exchange):\n"
        "    def wait(self, seconds):\n"
        "        super().wait(seconds)\n"
        "        if self.view().choice is not None:\n"
        "            self.changed._cond.acquire()\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "            self.changed._cond.release()\n"
        "from shardwise.solver import _solve\n"
        "_solve.Exchange = Exchange\n"
        f"print(solve(read_problem({str(hard_problem)!r}), time_limit=250).status)\n"
    )
    command = [sys.executable, "-c", script]
    made = subprocess.run(
        command, capture_output=True, text=True, env=_ENVIRONMENT, preexec_fn=_listen, timeout=200
    )
    assert made.stdout == "feasible\n", made.stderr


def test_it_ends_the_search_for_what_is_lacking(hard_problem):
    """Which is made of many searches, all of them over after the first Ctrl-C."""
    script = (
        "import signal\n"
        "from shardwise.solver import _exchange, _solve, read_problem\n"
        "class Exchange(_exchange.Exchange):\n"
        "    def wait(self, seconds):\n"
        "        print('searched')\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "_solve.Exchange = Exchange\n"
        f"run = _solve._Run(read_problem({str(hard_problem)!r}), 0.0, 1e9, None, 0, 1, None)\n"
        "run.least_memory(0)\n"
        "print('went on')\n"
    )
    command = [sys.executable, "-c", script]
    made = subprocess.run(
        command, capture_output=True, text=True, env=_ENVIRONMENT, preexec_fn=_listen, timeout=200
    )
    assert made.stdout == "searched\n" and made.stderr.endswith("KeyboardInterrupt\n"), made


def test_the_command_writes_its_best(hard_problem, tmp_path):
    out = tmp_path / "solution.json"
    run = "from shardwise.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        run,
        "solve",
        str(hard_problem),
        "--time-limit",
        "250",
        "--out",
        str(out),
    ]
    text = _interrupt(command, r"best \d")
    assert text.startswith("feasible: cost") and "written to" in text
    assert evaluate(read_problem(hard_problem), json.loads(out.read_text())).feasible


def _interrupt(command: list[str], sign: str) -> str:
    """Send SIGINT when `sign` shows on stderr, which is a terminal; what the command then prints."""
    master, slave = os.openpty()
    environment = {**_ENVIRONMENT, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=slave, text=True, env=environment, preexec_fn=_listen
    )
    os.close(slave)
    shown = ""
    while not re.search(sign, shown):
        shown += os.read(master, 4096).decode(errors="replace")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    os.close(master)
    assert process.returncode == 0
    return output


def _listen() -> None:
    """Whoever started the tests may have ignored SIGINT, and ignoring is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
