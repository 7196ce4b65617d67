"""Operators that their authors want sharded: each gets a sound rule that a person can read, and a strategy that passes
its own tests on four ranks."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from shardwise import UsageError
from shardwise.emission import emit_strategy, emit_tests
from shardwise.synthesis import Study, studies
from tests.emission import own_operators

MOST_CLAUSES, MOST_SECONDS = 8, 30
QUICK = ("topk_gate",)


def studied(name: str) -> Study:
    torch.manual_seed(0)
    op = getattr(torch.ops.own, name).default
    return studies(op, [(own_operators.CALLS[name](), {})])[0]


def has_rule_and_tested_strategy(name: str, folder: Path) -> None:
    started = time.process_time()
    study = studied(name)
    seconds = time.process_time() - started
    assert study.rule is not None and 1 <= len(study.rule.clauses) <= MOST_CLAUSES, study.rule
    print(f"{seconds:.1f} CPU s\n{study.rule}")
    calls = [o.call for o in study.observations]
    shutil.copy(own_operators.__file__, folder)
    strategy = emit_strategy(study.rule, calls).replace(
        "import torch\n", "import own_operators\nimport torch\n", 1
    )
    (folder / "strategy.py").write_text(strategy)
    if "none: the operator has to run on replicated tensors" in strategy:
        with pytest.raises(
            UsageError, match="it holds for even shards only, which a strategy cannot require"
        ):
            emit_tests(study.rule, calls, "strategy")
        return
    (folder / "test_strategy.py").write_text(emit_tests(study.rule, calls, "strategy"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_strategy.py"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("name", QUICK)
def test_an_operator_gets_a_rule_and_a_strategy(name: str, tmp_path: Path) -> None:
    has_rule_and_tested_strategy(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in own_operators.CALLS if name not in QUICK])
def test_every_operator_gets_a_rule_and_a_strategy(name: str, tmp_path: Path) -> None:
    has_rule_and_tested_strategy(name, tmp_path)
