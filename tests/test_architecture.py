"""The parts stand on each other as docs/architecture.md says: imports point down, and into no part's inside."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "shardwise"
BELOW_ALL = ("errors", "files", "progress")
PARTS = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)

# What torch does not publish, apart from operators' names and three modules that no part can do without.
PRIVATE = re.compile(r"torch\.(?!ops\.)(\w+\.)*_(?!_|ops\b|pytree\b|python_dispatch\b)")
MAY_TOUCH = {"dtensor", "graph"}
FILES = {SOURCE / "calls" / "_torch.py", SOURCE / "mesh" / "_measure.py"}  # the second lets a GPU wait


def files(part: str) -> list[Path]:
    return sorted((SOURCE / part).rglob("*.py"))


def imported(file: Path) -> Iterator[list[str]]:
    """What a file imports of this package, as names from its root on."""
    here = file.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            root = list(here[: len(here) - node.level + 1])
            module = root + (node.module.split(".") if node.module else [])
            yield from ([*module, name.name] for name in node.names)


def test_every_part_is_in_the_table():
    assert sorted(PARTS) == sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize("part", [part for part in PARTS if part != "cli"])
def test_imports_point_down(part):
    below = {*PARTS[: PARTS.index(part)], *BELOW_ALL, part}
    for file in files(part):
        for names in imported(file):
            assert names[0] in below, f"{file.relative_to(SOURCE)} imports {'.'.join(names)}"


@pytest.mark.parametrize("part", PARTS)
def test_no_part_reaches_into_another(part):
    for file in files(part):
        for names in imported(file):
            if names[0] != part:
                inside = [name for name in names[1:] if name.startswith("_")]
                assert not inside, f"{file.relative_to(SOURCE)} imports {'.'.join(names)}"


@pytest.mark.parametrize("part", [part for part in PARTS if part not in MAY_TOUCH])
def test_what_torch_does_not_publish_is_touched_in_few_places(part):
    for file in files(part):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            modules += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            modules += [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
            for module in modules:
                touches = PRIVATE.match(module) and file not in FILES
                assert not touches, f"{file.relative_to(SOURCE)} touches {module}"


@pytest.mark.parametrize("file", sorted((ROOT / "tests").rglob("*.py")), ids=lambda file: file.stem)
def test_tests_reach_into_no_other_room(file):
    room = file.relative_to(ROOT / "tests").parts[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwise."):
            names = [*node.module.split(".")[1:], *(name.name for name in node.names)]
            private = [name for name in names if name.startswith("_")]
            assert not private or names[0] == room, f"{file.relative_to(ROOT)} imports {'.'.join(names)}"
