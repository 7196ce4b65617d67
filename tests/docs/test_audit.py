"""Every script of docs/audit.md still prints what the page says it prints."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from shardwise.auditing import execute
from shardwise.dtensor import REFUTED

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
SCRIPTS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
# The table of wrong rows: overload, row, for which shards.
WRONG = re.findall(
    r"^\| `(.+?)` \| `(.+?)`(| \(.*?\))(?: \*)? \|",
    PAGE.read_text().split("## Wrong")[1].split("###")[0],
    re.MULTILINE,
)


def test_the_page_is_about_this_version_of_torch():
    assert f"torch {torch.__version__.split('+')[0]}," in PAGE.read_text().splitlines()[0]


def test_known_wrong_rules_are_on_the_page():
    lines = PAGE.read_text().splitlines()
    for op, row in (
        ("aten.any.default", "P(sum) -> P(sum)"),
        ("aten.linalg_vector_norm.default", "P(max) -> P(max)"),
        ("aten.linalg_vector_norm.default", "P(min) -> P(min)"),
        ("aten.linalg_solve_triangular.default", "R, S(0) -> S(0)"),
    ):
        assert any(line.startswith(f"| `{op}` | `{row}`") for line in lines)


def test_every_wrong_row_has_a_script():
    assert len(SCRIPTS) == len(WRONG) > 50


def test_the_rules_that_are_replaced_are_those_of_the_page():
    version = torch.__version__.split("+")[0]
    shipped = yaml.safe_load((REFUTED / f"{version}.yaml").read_text())
    assert sorted((op, row) for op, rows in shipped["wrong"].items() for row in rows) == sorted(
        (op, row + when) for op, row, when in WRONG
    )
    assert f"torch {shipped['torch']}," in PAGE.read_text().splitlines()[0]


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_a_script_prints_a_wrong_number_and_the_right_one(number):
    script, printed = SCRIPTS[number]
    assert execute(script) == printed
    wrong, right = (line.split(":", 1)[1].strip() for line in printed.splitlines())
    assert wrong != right
