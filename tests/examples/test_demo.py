import re
from pathlib import Path

from shardwise import Plan


def test_the_demo_discovers_plans_verifies_and_draws(run_example, tmp_path):
    printed = run_example("demo.py")
    assert "S(1), S(0) -> P(sum)" in printed
    assert "the whole output is" in printed
    assert "this plan" in printed
    assert "verified: sharded equals unsharded" in printed
    page = Path(re.search(r"the plan as a page: (.*)", printed)[1])
    assert page == tmp_path / "build" / "demo.html"
    assert page.read_text().startswith("<!doctype html>")
    plan = Plan.load(page.with_suffix(".json"))
    assert plan.cost.peak <= 26e6
    assert len(plan.schedule.moves) > 0
