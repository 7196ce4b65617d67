"""Prose, tables and scripts, as Markdown or as one HTML file in the style of the page of a plan."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files


@dataclass(frozen=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Script:
    title: str
    code: str
    output: str


Block = str | Heading | Table | Script


def prose_markdown(blocks: Iterable[Block]) -> str:
    return "\n\n".join(_in_markdown(block) for block in blocks) + "\n"


def _in_markdown(block: Block) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Script):
        return (
            f"<details><summary>{escape(block.title)}</summary>\n\n```python\n{block.code}```\n\n"
            f"```\n{block.output}```\n\n</details>"
        )
    lines = [block.head, tuple("---" for _ in block.head), *block.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def prose_page(blocks: Iterable[Block]) -> str:
    """The blocks as a page: first its title, then what is said at its head, then a card for each heading."""
    title, *rest = blocks
    assert isinstance(title, Heading)
    head, cards = [f"<h1>{escape(title.text)}</h1>"], list[list[str]]()
    for block in rest:
        if isinstance(block, Heading) and block.level == 2:
            cards.append([])
        (cards[-1] if cards else head).append(_in_html(block))
    sections = [f'<section class="wide">\n{part}\n</section>' for part in map("\n".join, cards)]
    return _PAGE.format(
        title=escape(title.text),
        style=(files(__package__) / "page" / "plan.css").read_text(),
        head="\n".join(head),
        sections="\n".join(sections),
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}
</style>
</head>
<body>
<header>
{head}
</header>
<main>
{sections}
</main>
</body>
</html>
"""


def _in_html(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{_inline(block)}</p>"
    if isinstance(block, Heading):
        return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
    if isinstance(block, Script):
        return (
            f"<details><summary>{_inline(block.title)}</summary>"
            f"<pre>{escape(block.code)}</pre><pre>{escape(block.output)}</pre></details>"
        )
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in block.head)
    rows = "".join("<tr>" + "".join(f"<td>{_inline(c)}</td>" for c in row) + "</tr>\n" for row in block.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>'


def _inline(text: str) -> str:
    """Escaped, with `code` between backticks."""
    parts = escape(text, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
