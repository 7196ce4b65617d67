"""Prose, tables and scripts as one HTML file in the style of the page of a plan."""

from collections.abc import Iterable
from html import escape

from ..display import Block, Heading, as_html
from ._page import page_style


def prose_page(blocks: Iterable[Block]) -> str:
    """The blocks as a page: first its title, then its introduction, then a card for each heading."""
    title, *rest = blocks
    assert isinstance(title, Heading)
    head, cards = list[Block]([title]), list[list[Block]]()
    for block in rest:
        if isinstance(block, Heading) and block.level == 2:
            cards.append([])
        (cards[-1] if cards else head).append(block)
    sections = [f'<section class="wide">\n{as_html(card)}\n</section>' for card in cards]
    return _PAGE.format(
        title=escape(title.text),
        style=page_style(),
        head=as_html(head),
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
<body class="shardwise">
<header>
{head}
</header>
<main>
{sections}
</main>
</body>
</html>
"""
