"""Prose, tables and scripts as one HTML file, in the style of the page of a plan: what was audited or discovered."""

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from ..dtensor import Audit, Block, Heading, Script, audit_blocks


def audit_page(audit: Audit, command: str = "") -> str:
    """An audit as one HTML file that needs no other; `command` is named as what made it."""
    return prose_page(audit_blocks(audit, command))


def prose_page(blocks: Iterable[Block]) -> str:
    """The blocks as a page: first its title, then what is said at its head, then a card for each heading."""
    title, *rest = blocks
    assert isinstance(title, Heading)
    head, cards = [f"<h1>{escape(title.text)}</h1>"], list[list[str]]()
    for block in rest:
        if isinstance(block, Heading) and block.level == 2:
            cards.append([])
        (cards[-1] if cards else head).append(_written(block))
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


def _written(block: Block) -> str:
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
