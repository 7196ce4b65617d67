"""The whole pipeline as a user runs it: one command, and what it wrote is used in a fresh process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

OPS = (
    *(
        "torch.renorm",
        "torch.searchsorted",
        "torch.cdist",
        "torch.addbmm",
        "torch.Tensor.unfold",
        "torch.block_diag",
    ),
    *("torch.masked_scatter", "torch.scatter_reduce", "torch.nn.functional.bilinear"),
    "torch.nn.functional.unfold",
)

SOURCE = Path(__file__).parents[2] / "src"
COMMAND = "from shardwise.cli import main; main()"
# Wrong for all of these operators: they do not turn the pieces of a sum into values of which the largest is right.
# It must be seen by its values, or by its placement where a right row takes the same inputs.
WRONG_RESULT = re.compile(
    r"-> \[Partial\(max\)\]: Tensor-likes are not|Object comparison failed: Partial\(max\) != Partial\(sum\)"
)
WRONG = "strategies.append([Partial('max'), Partial('sum'), *[Replicate()] * (len(strategies[0]) - 2)])"


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=known | environment, capture_output=True, text=True
    )


def emitted_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_strategy.py")


def command_writes_what_works_alone(op: str, folder: Path) -> None:
    files = ["--yaml", "report.yaml", "--emit-strategy", "strategy.py", "--emit-tests", "test_strategy.py"]
    written = run(folder, "-c", COMMAND, "discover", op, "--sweep", *files, PYTHONPATH=str(SOURCE))
    assert written.returncode == 0, written.stdout + written.stderr
    for document in yaml.safe_load_all((folder / "report.yaml").read_text()):
        assert document["evidence"]["calls_held_out"] >= 30 and document["clauses"]
    assert run(folder, "-c", "import strategy").returncode == 0

    right = emitted_tests(folder)
    assert right.returncode == 0, right.stdout + right.stderr
    strategy = folder / "strategy.py"
    text = strategy.read_text().replace("    return strategies", f"    {WRONG}\n    return strategies", 1)
    strategy.write_text(_with_imports(text))
    wrong = emitted_tests(folder)
    assert wrong.returncode == 1 and re.search("[23] failed", wrong.stdout), wrong.stdout
    assert WRONG_RESULT.search(wrong.stdout), wrong.stdout


def _with_imports(text: str) -> str:
    line = "from torch.distributed.tensor.placement_types import Partial, Replicate\n"
    return text.replace("import torch\n", f"import torch\n{line}", 1)


@pytest.mark.long
@pytest.mark.parametrize("op", OPS)
def test_one_command_does_it_all_for(op: str, tmp_path: Path) -> None:
    command_writes_what_works_alone(op, tmp_path)
