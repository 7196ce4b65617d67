"""Results show themselves: one line at a prompt, a page of text when printed, HTML in a notebook."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.auditing import Audit, Missing, Unsupported, Wrong
from shardwise.display import Shown, as_fragment, as_text
from shardwise.layout import Layout
from shardwise.redistribution import cheapest_chain
from shardwise.report import plan_page, prose_page
from shardwise.rules import Clause
from shardwise.solver import Problem
from shardwise.synthesis import Study, Sweep


@pytest.fixture(scope="module")
def model():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)), (torch.rand(8, 16),)


@pytest.fixture(scope="module")
def plan(model):
    net, args = model
    return sw.plan(net, args, mesh="dp=2,tp=2", cluster="laptop", pin={"0.weight": "S(0), S(1)"})


@pytest.fixture(scope="module")
def report(model, plan):
    net, args = model
    return sw.verify(net, args, {}, plan=plan)


@pytest.fixture(scope="module")
def results(plan, report):
    """Everything that is returned to a user."""
    mesh = sw.Mesh.parse("dp=2,tp=4")
    layout = Layout.parse("S(0), P(sum)", mesh)
    rule = sw.rule(torch.add)
    problem = Problem.build(costs=[[0, 5], [2, 4]], edges=[[0, 1]], tables=[[1, 0, 0, 1]])
    wrong = Wrong(
        "aten.any.default", "aten.any.default(bool[4])", "op strategy", "S(0) -> R", "code\n" * 40, ""
    )
    missing = Missing(
        "aten.mm.default", "aten.mm.default()", "", "S(0), R -> S(0)", "any", None, 8, "gathers", False
    )
    unsupported = Unsupported("aten.mm.default", "aten.mm.default(float32[4, 6])", "no strategy", True)
    study = Study("torch.add", "aten.add.Tensor", None, [], Sweep(), validated_on=4)
    found = sw.discover(torch.softmax, torch.rand(4, 6, 8), dim=1)
    return {
        "found": found,
        "nothing found": sw.discover(torch.rand, 4),
        "verdict": sw.check(torch.abs, "S(0) -> S(0)", torch.rand(4, 6)),
        "refuted": sw.check(torch.abs, "P(sum) -> P(sum)", torch.rand(4, 6)),
        "price": sw.price(nn.Linear(8, 8), (torch.rand(8, 8),), layout="fsdp=2,tp=2"),
        "row": found.rows[0],
        "rule": rule,
        "clause": rule.clauses[0],
        "entry": sw.rules.book().entry(rule.op),
        "study": replace(study, rule=rule),
        "study without a rule": study,
        "audit": Audit("2.13.0", (wrong,), (missing,), (unsupported,), (), (), (), 1, 1),
        "wrong": wrong,
        "missing": missing,
        "unsupported": unsupported,
        "mesh": mesh,
        "cluster": sw.Cluster.preset("h100"),
        "layout": layout,
        "sharding": sw.Sharding.parse("[{dp}, {tp, ?}p1] replicated={}", mesh),
        "redistribution": cheapest_chain(layout, Layout.parse("R, S(1)", mesh), (64, 64)),
        "problem": problem,
        "solution": sw.solve(problem),
        "graph": plan.graph,
        "plan": plan,
        "choice": next(iter(plan.choices.values())),
        "report": report,
        "broken report": replace(
            report,
            verdict=replace(report.verdict, kind="wrong", reason="first wrong call: gelu by <b>"),
            checks=(replace(report.checks[0], error=0.3),),
        ),
    }


NAMES = (
    *("found", "nothing found", "verdict", "refuted", "row", "rule", "clause", "entry", "study"),
    *(
        "study without a rule",
        "audit",
        "wrong",
        "missing",
        "unsupported",
        "mesh",
        "cluster",
        "layout",
        "sharding",
    ),
    *("redistribution", "problem", "solution", "graph", "plan", "choice", "report", "broken report"),
)


@pytest.mark.parametrize("name", NAMES)
def test_at_a_prompt_a_result_is_one_short_line(results, name):
    shown = repr(results[name])
    assert "\n" not in shown and len(shown) <= 120
    assert "tensor(" not in shown and "Counter" not in shown and " object at " not in shown


@pytest.mark.parametrize("name", [name for name in NAMES if name != "entry"])  # printed as it is written
def test_printed_a_result_fits_a_terminal(results, name):
    lines = str(results[name]).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100


READ = {"Row": sw.Row, "Mesh": sw.Mesh, "Layout": Layout, "Sharding": sw.Sharding}


@pytest.mark.parametrize("name", ["row", "mesh", "layout", "sharding"])
def test_a_repr_that_is_code_gives_the_same_again(results, name):
    assert eval(repr(results[name]), dict(READ)) == results[name]


def test_the_repr_of_a_clause_gives_it_again_without_its_reason(results):
    clause = results["clause"]
    assert eval(repr(clause), {"Clause": Clause}) == replace(clause, reason="")


@pytest.mark.parametrize(
    "name", ["found", "nothing found", "verdict", "rule", "study", "plan", "report", "broken report"]
)
def test_in_a_notebook_a_result_is_made_of_the_blocks_that_are_printed(results, name):
    result = results[name]
    assert isinstance(result, Shown)
    assert result._repr_html_() == as_fragment(result.blocks())
    if name != "rule":  # which prints as it is written
        assert str(result) == as_text(result.blocks())


def test_what_was_found_is_shown_with_its_evidence(results):
    found, html = results["found"], results["found"]._repr_html_()
    assert str(found).startswith(
        "torch.softmax(float32[4, 6, 8], dim=1)\nDispatches to aten._softmax.default."
    )
    for row, evidence in found.evidence.items():
        assert f"<code>{str(row).replace('>', '&gt;')}</code>" in html
        assert f'<td class="number">{evidence.total()}</td>' in html
    assert "No rows but the replicated one" in str(results["nothing found"])


def test_a_rule_is_shown_with_its_reasons_and_its_calls(results):
    rule, html = results["rule"], results["rule"]._repr_html_()
    assert f"validated on {rule.evidence['held_out']} held-out calls" in html
    for clause in rule.clauses:
        assert clause.reason in html
    assert repr(rule) == f"<Rule aten.add.Tensor: {len(rule.clauses)} clauses>"


def test_a_plan_is_shown_with_its_parts_and_what_it_is_compared_with(plan):
    html = plan._repr_html_()
    assert "var(--part-compute" in html
    for name in ("this plan", "lower bound"):
        assert f"<td>{name}</td>" in html
    assert str(plan) == plan.summary()


def test_a_report_says_first_and_last_what_matters(results):
    good, bad = results["report"], results["broken report"]
    assert '<p class="good">verified: sharded equals unsharded</p>' in good._repr_html_()
    assert '<p class="warn">NOT verified</p>' in bad._repr_html_()
    assert "gelu by &lt;b&gt;" in bad._repr_html_() and "<b>" not in bad._repr_html_()
    assert str(bad).splitlines()[-1] == "NOT verified"


def test_names_that_a_user_gives_are_escaped(plan, report, results):
    name = "<img src=x>"
    shown = [
        replace(plan, graph=replace(plan.graph, name=name)),
        replace(report, model=name),
        replace(results["rule"], op=name),
        replace(results["found"], op=name, evidence={sw.Row.parse("R -> R"): Counter(a=1)}),
    ]
    for result in shown:
        assert name not in result._repr_html_()
        assert "&lt;img src=x&gt;" in result._repr_html_()


def test_notebooks_and_pages_have_the_same_pieces(results, plan):
    found = results["found"]
    table = found._repr_html_().partition("<table>")[2].partition("</table>")[0]
    page = prose_page(found.blocks())
    assert table in page
    style = found._repr_html_().partition("<style>\n")[2].partition("</style>")[0]
    assert style in page
    assert style in plan_page(plan, runners_up=False)
