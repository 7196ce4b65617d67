import json
import subprocess
import sys

from shardwise.dtensor import wrong_operators

COMMAND = [sys.executable, "-c", "from shardwise.cli import main; main()"]


def run(*arguments):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=200)


def test_audit_prints_one_json_document_and_writes_pages(tmp_path):
    page, text = tmp_path / "audit.html", tmp_path / "audit.md"
    options = ["--op", "aten.any.d*lt", "--jobs", "2", "--samples", "1", "--designed", "0", "--json"]
    result = run("audit", *options, "--html", str(page), "--markdown", str(text), "--refuted", str(tmp_path))
    document = json.loads(result.stdout)
    assert result.stderr == ""
    assert [(w["op"], w["row"]) for w in document["wrong"]] == [("aten.any.default", "P(sum) -> P(sum)")]
    assert page.read_text().startswith("<!doctype html>")
    assert "P(sum) -> P(sum)" in text.read_text()
    assert wrong_operators(tmp_path) == {"aten.any.default"}
    command = (
        "shardwise audit --op 'aten.any.d*lt' --jobs 2 --samples 1 --designed 0 --json "
        f"--html {page} --markdown {text} --refuted {tmp_path}"
    )
    assert text.read_text().splitlines()[2] == f"Made by `{command}`."


def test_an_unknown_operator_is_one_sentence():
    result = run("audit", "--op", "aten.no_such_operator")
    assert result.returncode == 2
    assert result.stderr.startswith("shardwise: no operator matches")
