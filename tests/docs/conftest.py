"""Running a page of documentation: each block of code is run, and prints what the block after it says."""

import contextlib
import io
import linecache
import re
import shlex
from pathlib import Path
from zlib import crc32

import pytest

from shardwise import cli

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
    """Pairs of what is run and what it prints; code that prints nothing has None."""
    found = BLOCK.findall(page.read_text())
    for (kind, code), (following, output) in zip(found, [*found[1:], ("", "")], strict=True):
        if kind != "text":
            yield kind, code, output if following == "text" else None


@pytest.fixture
def run_page(monkeypatch):
    """`run_page(path)` runs all blocks in one namespace and returns how many there were."""

    def run(kind, code, namespace, page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if kind == "python":
                # As notebooks do, so that the lines of a block can be read.
                name = f"{page}#{crc32(code.encode())}"
                linecache.cache[name] = len(code), None, code.splitlines(keepends=True), name
                exec(compile(code, name, "exec"), namespace)
            else:
                assert cli.run(shlex.split(code)[1:]) == 0
        return printed.getvalue()

    def run_all(page: Path) -> int:
        monkeypatch.chdir(page.parents[1])
        namespace = {}
        ran = 0
        for kind, code, output in blocks(page):
            assert kind in ("python", "bash")
            assert run(kind, code, namespace, page).strip() == (output or "").strip(), code
            ran += 1
        return ran

    return run_all
