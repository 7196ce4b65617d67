"""Blocks as Markdown."""

from collections.abc import Iterable
from html import escape

from ._blocks import Bars, Block, Heading, Lanes, Outcome, Plot, Script, Table
from ._text import drawn


def as_markdown(blocks: Iterable[Block]) -> str:
    return "\n\n".join(map(_written, blocks)) + "\n"


def _written(block: Block) -> str:
    match block:
        case str():
            return block
        case Outcome(text=text):
            return f"**{text}**"
        case Heading(level=level, text=text):
            return f"{'#' * level} {text}"
        case Script(title=title, code=code, output=output):
            shown = f"```python\n{code}```\n\n```\n{output}```"
            return f"<details><summary>{escape(title)}</summary>\n\n{shown}\n\n</details>" if title else shown
        case Bars(parts=parts):
            shares = [(bar.name, bar.amount, f"{bar.share:.1%}") for bar in parts]
            return _written(Table(("part", ">amount", ">share"), shares))
        case Lanes():
            return "\n".join(["```text", *drawn(block, 80), "```"])
        case Plot(across=across, up=up, points=points):
            rows = [(point.across, point.up) for point in points]
            return _written(Table((f">{across}", f">{up}"), rows))
        case Table(rows=rows):
            marks = tuple("---:" if number else "---" for number in block.numeric)
            lines = [block.names, marks, *rows]
            return "\n".join(
                "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
            )
