"""The tour names files and definitions that exist, in at most twelve hops a journey."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOURNEYS = re.split(r"^## ", (ROOT / "docs" / "tour.md").read_text(), flags=re.MULTILINE)[1:]
HOP = re.compile(r"^\| (\d+) \| `([\w/]+\.py)` \| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"`([A-Za-z_][\w.]*)`")


def defined(file: Path) -> set[str]:
    """Functions, classes, methods as `Class.method`, and names that a file assigns."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{child.name}" for child in node.body if isinstance(child, ast.FunctionDef)
            }
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("journey", JOURNEYS, ids=lambda text: text.splitlines()[0])
def test_hops_are_where_the_tour_says(journey):
    hops = HOP.findall(journey)
    assert [int(number) for number, _, _ in hops] == list(range(1, len(hops) + 1))
    assert 5 <= len(hops) <= 12
    for _, name, text in hops:
        file = ROOT / "src" / "shardwise" / name
        first = NAME.search(text)
        assert first is not None and first[1] in defined(file), f"{name}: {text}"


def test_there_are_four_journeys():
    assert len(JOURNEYS) == 4
