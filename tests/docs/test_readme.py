"""The README: its transcript happens, and its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from shardwise.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
STATUS = {"check": 1}  # the row that is shown is refuted


def commands(block):
    """Each command of a block with the lines shown after it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.rstrip("\n").split("\n")
        yield command, shown


def opening(line):
    """The first two words that are no numbers: prices change with what is known, what is said does not."""
    return [word for word in line.split() if not re.search(r"\d", word)][:2]


def is_shown(shown, out, said):
    """True if what is shown is the output, `...` standing for lines that are left out."""
    lines = ("(?:.*\n)+" if line == "..." else re.escape(f"{said(line)}\n") for line in shown)
    return re.fullmatch("".join(lines), "".join(f"{said(line)}\n" for line in out.splitlines()))


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def start(command):
        monkeypatch.setattr("sys.argv", shlex.split(command))
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, capsys.readouterr().out

    return start


@pytest.mark.parametrize("block", BLOCKS[:2])
def test_what_discovery_prints_is_as_shown(run, block):
    for command, shown in commands(block):
        status, out = run(command)
        assert status == STATUS.get(command.split()[1], 0)
        assert is_shown(shown, out, str.strip)


def test_planning_verifying_and_drawing_happen_as_shown(run, tmp_path):
    for command, shown in commands(BLOCKS[2]):
        status, out = run(command)
        assert status == 0
        assert is_shown(shown, out, opening)
    assert (tmp_path / "plan.html").exists()


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)|(?:src|srcset)=\"([^\"]+)\"", text)
    for link in (first or second for first, second in links):
        assert ((ROOT / page).parent / link).exists(), link
