"""`shardwise solve`: files in, checked solutions out."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from shardwise.cli import app
from shardwise.cli._solve import write_checked
from shardwise.errors import UsageError
from shardwise.solver import Problem, evaluate, read_problem, solve


@pytest.fixture
def problem_file(tmp_path):
    problem = Problem.build(
        costs=[[0, 5], [0, 4], [0, 3]],
        usages=[[5, 0], [4, 0], [3, 0]],
        intervals=[[0, 2], [0, 2], [1, 3]],
        edges=[[0, 1]],
        tables=[[1, 0, 0, 1]],
        usage_limit=7,
    )
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem.to_json()))
    return path


def _invoke(*arguments):
    return CliRunner().invoke(app, ["solve", *map(str, arguments)])


def test_the_solution_is_a_list_of_integers(problem_file, tmp_path):
    out = tmp_path / "solution.json"
    result = _invoke(problem_file, "--time-limit", 60, "--out", out)
    assert result.exit_code == 0
    choices = json.loads(out.read_text())
    assert evaluate(read_problem(problem_file), choices).feasible
    assert f"written to {out}" in result.stdout


def test_json_is_one_document_and_nothing_else(problem_file):
    result = _invoke(problem_file, "--json")
    document = json.loads(result.stdout)
    assert document["status"] == "optimal"
    assert (
        document["cost"]
        == document["bound"]
        == evaluate(read_problem(problem_file), document["choices"]).cost
    )


def test_infeasible_says_what_is_lacking_and_writes_nothing(problem_file, tmp_path):
    document = json.loads(problem_file.read_text())
    document["problem"]["nodes"]["usages"] = [[9, 8], [4, 0], [3, 0]]
    problem_file.write_text(json.dumps(document))
    out = tmp_path / "solution.json"
    result = _invoke(problem_file, "--out", out)
    assert result.exit_code == 1
    assert "the smallest feasible limit is 8, binding in [0, 1)" in result.stdout
    assert not out.exists()


def test_nothing_is_written_when_the_check_fails(problem_file, tmp_path):
    problem = read_problem(problem_file)
    solution = solve(problem, time_limit=300)
    out = tmp_path / "solution.json"
    with pytest.raises(AssertionError, match="nothing was written"):
        write_checked(problem, replace(solution, cost=solution.cost - 1), out)
    assert not out.exists()
    write_checked(problem, solution, out)
    assert json.loads(out.read_text()) == solution.choices


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--time-limit", "0"], "--time-limit is 0"),
        (["--out", "no/such/folder/s.json"], "there is no directory"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(problem_file, arguments, message):
    result = _invoke(problem_file, *arguments)
    assert isinstance(result.exception, UsageError) and message in str(result.exception)


def test_a_broken_file_names_the_place_of_the_fault(problem_file):
    document = json.loads(problem_file.read_text())
    document["problem"]["edges"]["costs"] = [[1, 2, 3]]
    problem_file.write_text(json.dumps(document))
    result = _invoke(problem_file)
    assert isinstance(result.exception, UsageError) and "edges.costs[0] has 3 entries" in str(
        result.exception
    )


def test_the_time_limit_counts_from_the_start_of_the_process():
    script = (
        "import time; begun = time.monotonic()\n"
        "from shardwise.cli import _app\n"
        "age = begun - _app._process_start()\n"
        "assert 0 <= age < 60, age\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_a_file_that_is_not_read_in_time_ends_the_command(problem_file, tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    result = _invoke(pipe, "--time-limit", 1)
    pipe.write_bytes(problem_file.read_bytes())  # ends the thread that still reads
    assert result.exit_code == 1
    assert result.stdout == "unknown: the time limit was reached before the file was read.\n"


def test_the_process_ends_with_its_output_written(problem_file):
    command = [sys.executable, "-m", "shardwise", "solve", str(problem_file), "--json", "--time-limit", "200"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["status"] == "optimal"
    ran = subprocess.run([*command[:4], "missing.json"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith("shardwise: missing.json cannot be read")
