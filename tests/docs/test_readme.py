"""The README: its transcript happens, and its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from shardwise.cli import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
STATUS = {"check": 1}  # the row that is shown is refuted


def commands(block):
    """Each command of a block with the lines shown after it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.rstrip("\n").split("\n")
        yield command, shown


def words(line):
    """The words that are no numbers, units or names of tensors: prices change with what is known, and which tensor is
    furthest off with the machine; what is said does not."""
    units = ("ns", "us", "ms", "s", "B", "KB", "MB", "GB")
    told = (word for word in line.split() if word not in units)
    return [word for word in told if re.search(r"[A-Za-z]", word) and not re.search(r"\d|\w\.\w", word)]


def is_shown(shown, out, said):
    """True if what is shown is the output, `...` standing for lines that are left out."""
    lines = ("(?:.*\n)+" if line == "..." else re.escape(f"{said(line)}\n") for line in shown)
    return re.fullmatch("".join(lines), "".join(f"{said(line)}\n" for line in out.splitlines()))


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def start(command):
        status = run(shlex.split(command)[1:])
        return status, capsys.readouterr().out

    return start


@pytest.mark.parametrize("block", BLOCKS[:2])
def test_what_discovery_prints_is_as_shown(call, block):
    for command, shown in commands(block):
        status, out = call(command)
        assert status == STATUS.get(command.split()[1], 0)
        assert is_shown(shown, out, str.strip)


def test_planning_verifying_and_drawing_happen_as_shown(call, tmp_path):
    for command, shown in commands(BLOCKS[2]):
        status, out = call(command)
        assert status == 0
        assert is_shown(shown, out, words)
        assert max(map(len, out.splitlines())) <= 80
    assert (tmp_path / "plan.html").exists()


def anchors(text):
    """What the headings of a page are called in links."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        yield re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples/README.md",
    *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md"))),
]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)|(?:src|srcset)=\"([^\"]+)\"", text)
    for target, anchor, source in links:
        path = (ROOT / page).parent / (target or source) if target or source else ROOT / page
        assert path.exists(), target or source
        assert not anchor or anchor in anchors(path.read_text()), f"{target}#{anchor}"


def test_some_links_lead_to_headings():
    assert sum(len(re.findall(r"\]\([^)]*#", (ROOT / page).read_text())) for page in PAGES) > 5
