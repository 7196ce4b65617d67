import json
from pathlib import Path

from typer.testing import CliRunner

from shardwise.cli import app

ZOO = Path(__file__).parents[2] / "examples" / "zoo.py"


def invoke(*arguments):
    return CliRunner().invoke(app, ["verify", *arguments])


def test_the_cheapest_plan_is_verified():
    result = invoke(f"{ZOO}:mlp", "--mesh", "dp=2,tp=2", "--steps", "2")
    assert result.exit_code == 0, result.output
    assert result.output.endswith("verified: sharded equals unsharded\n")


def test_random_plans_as_one_json_document():
    result = invoke(f"{ZOO}:uneven_linear", "--mesh", "d=4", "--random", "2", "--json")
    assert result.exit_code == 0, result.output
    reports = json.loads(result.stdout)
    assert [report["ok"] for report in reports] == [True, True]
    assert all(report["collectives"]["ran"] == report["collectives"]["priced"] for report in reports)
    assert {check["kind"] for check in reports[0]["checks"]} == {"loss", "output", "gradient", "parameter"}


def test_a_saved_plan_is_verified_and_a_damaged_one_is_not(tmp_path):
    file = tmp_path / "plan.json"
    made = CliRunner().invoke(app, ["plan", f"{ZOO}:mlp", "--mesh", "d=2", "--out", str(file)])
    assert made.exit_code == 0, made.output
    assert invoke(f"{ZOO}:mlp", "--plan", str(file)).exit_code == 0
    document = json.loads(file.read_text())
    document["rows"] = [
        {**row, "inputs": ["P(sum)"], "outputs": ["R"]}
        if len(row["inputs"]) == len(row["outputs"]) == 1
        else row
        for row in document["rows"]
    ]
    file.write_text(json.dumps(document))
    damaged = invoke(f"{ZOO}:mlp", "--plan", str(file))
    assert damaged.exit_code == 1
    assert "expected a row that the book has" in str(damaged.exception)


def test_a_wrong_rule_is_not_verified(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(
        "import torch\nimport shardwise as sw\nfrom shardwise.placements import Row\n\n"
        "@torch.library.custom_op('test_verify::running', mutates_args=())\n"
        "def running(x: torch.Tensor) -> torch.Tensor:\n    return x.cumsum(0)\n\n"
        "running.register_fake(lambda x: torch.empty_like(x))\n\n"
        "@sw.hand('test_verify.running.default')\n"
        "def rule(call):\n    return [Row.parse('S(0) -> S(0)')]\n\n"
        "def build():\n    return running, (torch.rand(4, 6),), {}\n"
    )
    result = invoke(f"{file}:build", "--mesh", "d=2", "--inference")
    assert result.exit_code == 1, result.output
    assert "NOT verified" in result.output and "test_verify.running.default" in result.output


def test_a_plan_for_another_model_is_refused(tmp_path):
    file = tmp_path / "plan.json"
    CliRunner().invoke(app, ["plan", f"{ZOO}:mlp", "--mesh", "d=2", "--out", str(file)])
    result = invoke(f"{ZOO}:linear", "--plan", str(file))
    assert "the plan is for another model" in str(result.exception)
    assert "the plan is for mesh d=2, not for d=4" in str(
        invoke(f"{ZOO}:mlp", "--plan", str(file), "--mesh", "d=4").exception
    )
    assert "give either --mesh" in str(invoke(f"{ZOO}:mlp").exception)
