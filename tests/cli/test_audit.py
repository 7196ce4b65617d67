import json
import subprocess
import sys

from shardwise.cli._audit import _write_pages
from shardwise.dtensor import wrong_operators

COMMAND = [sys.executable, "-c", "from shardwise.cli import main; main()"]


def run(*arguments):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=200)


def test_audit_prints_one_json_document_and_writes_pages(tmp_path):
    page, text = tmp_path / "audit.html", tmp_path / "audit.md"
    options = [
        "--op",
        "aten.linalg_vector_norm.d*lt",
        "--jobs",
        "2",
        "--samples",
        "2",
        "--designed",
        "0",
        "--json",
    ]
    files = [
        "--html",
        str(page),
        "--markdown",
        str(text),
        "--refuted",
        str(tmp_path),
        "--pages",
        str(tmp_path / "issues"),
    ]
    result = run("audit", *options, *files)
    document = json.loads(result.stdout)
    assert result.stderr == ""
    assert ("aten.linalg_vector_norm.default", "P(max) -> P(max)") in [
        (w["op"], w["row"]) for w in document["wrong"]
    ]
    assert page.read_text().startswith("<!doctype html>")
    assert "P(max) -> P(max)" in text.read_text()
    assert "(issues/aten.linalg_vector_norm.default.md)" in text.read_text()
    issue = (tmp_path / "issues" / "aten.linalg_vector_norm.default.md").read_text()
    assert document["wrong"][0]["script"] in issue and document["wrong"][0]["output"] in issue
    assert "No row with these inputs holds without communication." in issue
    assert wrong_operators(tmp_path) == {"aten.linalg_vector_norm.default"}
    command = (
        "shardwise audit --op 'aten.linalg_vector_norm.d*lt' --jobs 2 --samples 2 --designed 0 --json "
        f"--html {page} --markdown {text} --refuted {tmp_path} --pages {tmp_path / 'issues'}"
    )
    assert text.read_text().splitlines()[2] == f"Made by `{command}`."


def test_pages_of_what_is_no_longer_wrong_are_removed_and_no_other_file(tmp_path):
    stale, notes = tmp_path / "aten.amax.default.md", tmp_path / "notes.of.mine.md"
    stale.write_text("# DTensor computes wrong numbers for aten.amax.default\n")
    notes.write_text("# Notes\n")
    _write_pages(tmp_path, {"aten.any.dim": "# DTensor computes wrong numbers for aten.any.dim\n"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["aten.any.dim.md", "notes.of.mine.md"]


def test_an_unknown_operator_is_one_sentence():
    result = run("audit", "--op", "aten.no_such_operator")
    assert result.returncode == 2
    assert result.stderr.startswith("shardwise: no operator matches")
