"""Running an example as a user does: as a script, in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_example(tmp_path):
    """`run_example("demo.py", ...)` gives what it printed, with `ranks` under torchrun; it must end well."""

    def run(name: str, *arguments: object, ranks: int = 0) -> str:
        torchrun = (
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
        )
        command = [sys.executable, *torchrun, str(ROOT / "examples" / name), *map(str, arguments)]
        found = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": found, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
