"""`import shardwise` is quick: a room comes with the first use of its names."""

import ast
import subprocess
import sys
from pathlib import Path

import shardwise as sw


def test_every_public_name_is_found_in_its_room():
    for name in sw.__all__:
        assert getattr(sw, name).__name__ == name
    assert dir(sw) == sw.__all__


def test_type_checkers_read_the_same_names_from_the_same_rooms():
    tree = ast.parse(Path(sw.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    read = {name.name: line.module for line in block.body for name in line.names}
    assert read == sw._ROOM_OF
    assert sorted(read) == sorted(sw.__all__)


def test_the_command_line_starts_without_torch():
    script = (
        "import sys; from shardwise.cli import main; sys.argv = ['shardwise', 'solve', '--help']\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules and 'numba' not in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
