"""Displaying results and pages: a few kinds of blocks, as text for a terminal, as Markdown, and as HTML."""

from ._blocks import Bar, Bars, Block, Heading, Lane, Lanes, Outcome, Plot, Point, Script, Table, below
from ._html import as_fragment, as_html, style
from ._markdown import as_markdown
from ._shown import Shown
from ._text import as_text

__all__ = [
    "Bar",
    "Bars",
    "Block",
    "Heading",
    "Lane",
    "Lanes",
    "Outcome",
    "Plot",
    "Point",
    "Script",
    "Shown",
    "Table",
    "as_fragment",
    "as_html",
    "as_markdown",
    "as_text",
    "below",
    "style",
]
