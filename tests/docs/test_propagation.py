"""docs/propagation.md: each block of code is run, and prints what the block after it says."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from shardwise.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "propagation.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    """Pairs of what is run and what it prints; code that prints nothing has None."""
    found = BLOCK.findall(PAGE.read_text())
    for (kind, code), (following, output) in zip(found, [*found[1:], ("", "")], strict=True):
        if kind != "text":
            yield kind, code, output if following == "text" else None


def run(kind, code, namespace, monkeypatch):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if kind == "python":
            exec(compile(code, str(PAGE), "exec"), namespace)
        else:
            monkeypatch.setattr("sys.argv", shlex.split(code))
            with pytest.raises(SystemExit, match="0"):
                main()
    return printed.getvalue()


def test_every_block_prints_what_the_page_says(monkeypatch):
    monkeypatch.chdir(PAGE.parents[1])
    namespace = {}
    ran = 0
    for kind, code, output in blocks():
        assert kind in ("python", "bash")
        printed = run(kind, code, namespace, monkeypatch)
        assert printed.strip() == (output or "").strip(), code
        ran += 1
    assert ran > 10


@pytest.mark.parametrize("word", ["matmul", "transformer block", "conflict"])
def test_the_page_works_through(word):
    assert re.search(rf"^## A {word}", PAGE.read_text(), re.MULTILINE)
