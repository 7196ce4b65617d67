"""Blocks as HTML: the body of a page, or a fragment of its own for a notebook. Every word is escaped.

The pages of `report` have the same elements and the same style. A notebook's output inherits the colours of the
notebook, light or dark; a page has its own palette.
"""

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from ._blocks import Bars, Block, Heading, Lanes, Outcome, Plot, Script, Table, below
from ._plot import svg

_INSIDE = 2  # levels by which headings in a notebook are lower than those of a page


def style() -> str:
    """The style of blocks, for elements inside one of class `shardwise`."""
    return (files(__package__) / "style.css").read_text()


def as_html(blocks: Iterable[Block]) -> str:
    """The blocks one after the other."""
    return "\n".join(map(_element, blocks))


def as_fragment(blocks: Iterable[Block]) -> str:
    """The blocks with their style, for a notebook: the result of `_repr_html_`."""
    return f'<div class="shardwise">\n<style>\n{style()}</style>\n{as_html(below(blocks, _INSIDE))}\n</div>'


def _element(block: Block) -> str:
    match block:
        case str():
            return f"<p>{_inline(block)}</p>"
        case Outcome(good=good, text=text):
            return f'<p class="{"good" if good else "warn"}">{_inline(text)}</p>'
        case Heading(level=level, text=text):
            tag = f"h{min(6, level)}"
            return f"<{tag}>{_inline(text)}</{tag}>"
        case Script(title=title, code=code, output=output):
            return (
                f"<details><summary>{_inline(title)}</summary>"
                f"<pre>{escape(code)}</pre><pre>{escape(output)}</pre></details>"
            )
        case Bars():
            return _bars(block)
        case Lanes():
            return _lanes(block)
        case Plot():
            return svg(block)
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    marks = [' class="number"' if number else "" for number in table.numeric]

    def cells(tag: str, row: Iterable[str]) -> str:
        return "".join(f"<{tag}{mark}>{_inline(cell)}</{tag}>" for cell, mark in zip(row, marks, strict=True))

    head = f"<thead><tr>{cells('th', table.names)}</tr></thead>\n" if any(table.names) else ""
    rows = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in table.rows)
    return f'<div class="scroll"><table>{head}<tbody>\n{rows}</tbody></table></div>'


def _bars(bars: Bars) -> str:
    """As the page of a plan draws the parts of a step; a part has the colour of its name, where it has one."""
    lines = "".join(
        f'<span>{_inline(bar.name)}</span><span class="bar">'
        f'<span style="--colour: var(--part-{_name(bar.name)}, var(--part-other)); width: {bar.share:.2%}"></span>'
        f'</span><span class="value">{_inline(bar.amount)} <span class="soft">{bar.share:.1%}</span></span>\n'
        for bar in bars.parts
    )
    return f'<div class="bars">\n{lines}</div>'


def _lanes(lanes: Lanes) -> str:
    """A picture for each lane, as wide as there is place, and what the colours are."""

    def colour(kind: str) -> str:
        return f"fill: var(--part-{_name(kind)}, var(--part-other))"

    lines = "".join(
        f'<span>{_inline(lane.name)}</span><svg viewBox="0 0 1000 10" preserveAspectRatio="none">'
        + "".join(
            f'<rect x="{1000 * begin:.2f}" width="{1000 * (end - begin):.2f}" height="10" style="{colour(kind)}">'
            f"<title>{escape(kind)}</title></rect>"
            for begin, end, kind in lane.spans
        )
        + "</svg>\n"
        for lane in lanes.lanes
    )
    named = "".join(
        f'<svg viewBox="0 0 10 10"><rect width="10" height="10" style="{colour(kind)}"/></svg>{_inline(kind)}'
        for kind in lanes.kinds
    )
    return f'<div class="lanes">\n{lines}<span></span><span class="soft">{named}; {_inline(lanes.whole)}</span></div>'


def _name(text: str) -> str:
    return "".join(char if char.isalnum() or char == "_" else "-" for char in text)


def _inline(text: str) -> str:
    """Escaped, with `code` between backticks."""
    parts = escape(text, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
