import runpy
from pathlib import Path

import pytest


@pytest.mark.long
def test_the_essay_runs_and_agrees_with_the_library(capsys):
    runpy.run_path(str(Path(__file__).parents[2] / "docs" / "from_scratch.py"))
    printed = capsys.readouterr().out
    assert "5 rows of mm" in printed
    assert "layer 2: dp: S(0), R -> S(0); tp: S(1), S(0) -> P(sum)" in printed
