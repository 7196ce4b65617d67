"""Blocks as text for a terminal: aligned columns, no line wider than the terminal."""

from collections import Counter
from collections.abc import Iterable, Iterator
from textwrap import indent, wrap

from ._blocks import Bars, Block, Heading, Lanes, Outcome, Plot, Script, Table
from ._plot import lines

_BAR = 24  # characters of a bar that is the whole
_GAP = "  "
_NARROWEST = 16  # of a column whose text is wrapped


def as_text(blocks: Iterable[Block], width: int = 80) -> str:
    """The blocks one after another, tables and sections separated by empty lines."""
    lines: list[str] = []
    before: Block | None = None
    for block in blocks:
        if before is not None and _set_apart(before, block):
            lines.append("")
        lines += (line.rstrip() for line in _lines(block, width))
        before = block
    return "\n".join(lines)


def _set_apart(before: Block, block: Block) -> bool:
    if isinstance(before, Heading) and before.level > 1:
        return False
    return isinstance(block, Heading | Table | Bars | Lanes | Plot) or isinstance(
        before, Table | Bars | Lanes | Plot | Script
    )


def _lines(block: Block, width: int) -> Iterable[str]:
    match block:
        case str():
            return wrap(_plain(block), width, break_long_words=False, break_on_hyphens=False)
        case Heading(text=text) | Outcome(text=text):
            return [_plain(text)]
        case Script(title=title, code=code, output=output):
            return [f"{_plain(title)}:", *indent(f"{code}\n{output}", "    ").splitlines()]
        case Bars(parts=parts):
            return _in_line(
                Table(
                    ("", ">", ">", ""),
                    [(b.name, b.amount, f"{b.share:.1%}", "#" * round(_BAR * b.share)) for b in parts],
                ),
                width,
            )
        case Lanes():
            return drawn(block, width)
        case Plot():
            return lines(block)
        case Table():
            return _in_line(block, width)


def drawn(lanes: Lanes, width: int) -> Iterator[str]:
    """A line for each lane, with the first letter of what most of each place is, and a dot where that is nothing."""
    names = max((len(lane.name) for lane in lanes.lanes), default=0)
    places = max(width - names - 4, _NARROWEST)
    for lane in lanes.lanes:
        shares = [Counter[str]() for _ in range(places)]
        for begin, end, kind in lane.spans:
            for place in range(int(begin * places), min(int(end * places) + 1, places)):
                shares[place][kind] += min(end * places, place + 1) - max(begin * places, place)  # type: ignore[assignment]
        letters = (
            share.most_common(1)[0][0][0].upper() if sum(share.values()) > 0.5 else "." for share in shares
        )
        yield f"{_GAP}{lane.name:{names}}{_GAP}{''.join(letters)}"
    named = ", ".join(f"{kind[0].upper()} {kind}" for kind in lanes.kinds)
    yield f"{_GAP}{named}; {lanes.whole}"


def _in_line(table: Table, width: int) -> Iterator[str]:
    """A table line by line; long lines are wrapped within the widest text column."""
    rows = [tuple(map(_plain, row)) for row in table.rows]
    headed = [table.names, *rows] if any(table.names) else rows
    widths = [max(map(len, column), default=0) for column in zip(*headed, strict=True)]
    words = [i for i, number in enumerate(table.numeric) if not number]
    excess = sum(widths) + len(_GAP) * len(widths) - width
    if words and excess > 0:
        widest = max(words, key=widths.__getitem__)
        widths[widest] = max(_NARROWEST, widths[widest] - excess)
    for row in headed:
        cells = [
            wrap(cell, max(1, w), break_long_words=False, break_on_hyphens=False) or [""]
            for cell, w in zip(row, widths, strict=True)
        ]
        for i in range(max(map(len, cells), default=0)):
            parts = [cell[i] if i < len(cell) else "" for cell in cells]
            yield "".join(
                _GAP + (part.rjust(w) if number else part.ljust(w))
                for part, w, number in zip(parts, widths, table.numeric, strict=True)
            )


def _plain(text: str) -> str:
    return text.replace("`", "")
