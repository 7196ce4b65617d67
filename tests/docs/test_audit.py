"""Every script of an audit still prints what its page says it prints, in the torch that was audited."""

import math
import re
from pathlib import Path

import pytest
import torch
import yaml

from shardwise.auditing import execute, read_audit
from shardwise.dtensor import REFUTED

ROOT = Path(__file__).parents[2]
DOCS, KEPT = ROOT / "docs", ROOT / "benchmarks" / "results"
RUNNING = torch.__version__.split("+")[0]
# The page of each audited torch, and the pages with its scripts.
PAGES = {
    "2.13.0": (DOCS / "audit_2.13.md", sorted((DOCS / "wrong_2.13").glob("*.md"))),
    "2.15.0": (DOCS / "audit.md", sorted((DOCS / "wrong").glob("*.md"))),
}
SCRIPTS = {
    version: [
        found
        for page in pages
        for found in re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    for version, (_, pages) in PAGES.items()
}
HERE = SCRIPTS.get(RUNNING, [])


def wrong(version):
    """The table of wrong rows of a page: overload, row, for which shards."""
    text = PAGES[version][0].read_text().split("## Wrong")[1].split("\n##")[0]
    return re.findall(r"^\| \[?`(.+?)`.*? \| `(.+?)`(| \(.*?\))(?: \*)? \|", text, re.MULTILINE)


def values(printed):
    """What DTensor computed and what is right, as a script prints them."""
    lines = dict(line.split(":", 1) for line in printed.splitlines())
    return [eval(lines[name], {"nan": math.nan, "inf": math.inf}) for name in ("DTensor", "right")]


@pytest.mark.parametrize("version", PAGES)
def test_a_page_is_about_its_torch_and_has_a_script_for_every_wrong_row(version):
    assert f"torch {version}," in PAGES[version][0].read_text().splitlines()[0]
    assert len(SCRIPTS[version]) == len(wrong(version)) > 50


@pytest.mark.parametrize("version", PAGES)
def test_known_wrong_rules_are_on_the_page(version):
    rows = {(op, row) for op, row, _ in wrong(version)}
    assert {
        ("aten.linalg_vector_norm.default", "P(max) -> P(max)"),
        ("aten.linalg_vector_norm.default", "P(min) -> P(min)"),
        ("aten.mse_loss_backward.default", "R, S(0), S(0) -> S(0)"),
    } <= rows
    assert (("aten.any.default", "P(sum) -> P(sum)") in rows) == (version == "2.13.0")


@pytest.mark.parametrize("version", PAGES)
def test_the_rules_that_are_replaced_are_those_of_the_page(version):
    shipped = yaml.safe_load((REFUTED / f"{version}.yaml").read_text())
    assert shipped["torch"] == version
    assert sorted((op, row) for op, rows in shipped["wrong"].items() for row in rows) == sorted(
        (op, row + when) for op, row, when in wrong(version)
    )


@pytest.mark.parametrize("version", PAGES)
def test_a_page_has_what_its_audit_kept(version):
    kept = read_audit(KEPT / f"audit_{version}.jsonl.gz")
    assert [(w.op, w.row) for w in kept.wrong] == [(op, row) for op, row, _ in wrong(version)]


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated:UserWarning")
@pytest.mark.skipif(not HERE, reason=f"torch {RUNNING} was not audited")
@pytest.mark.parametrize("number", range(len(HERE)))
def test_a_script_prints_a_wrong_number_and_the_right_one(number):
    script, printed = HERE[number]
    found, right = values(execute(script))
    # The last digits are those of the processor.
    assert [found, right] == [pytest.approx(v, rel=1e-9, abs=1e-12, nan_ok=True) for v in values(printed)]
    assert found != right
