"""The kinds of blocks. A plain text is a paragraph; `code` is written between backticks, in any text except scripts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    """Level 1 is the title of the page."""

    level: int
    text: str


@dataclass(frozen=True)
class Table:
    """A heading that begins with `>` is that of a numeric column. If all headings are empty, they are not shown."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name.removeprefix(">") for name in self.head)

    @property
    def numeric(self) -> tuple[bool, ...]:
        return tuple(name.startswith(">") for name in self.head)


@dataclass(frozen=True)
class Script:
    """Code that can be run and its output; with a title it is folded where possible."""

    title: str
    code: str
    output: str


@dataclass(frozen=True)
class Bar:
    """A part of a whole: its amount as text, and the fraction that is drawn."""

    name: str
    amount: str
    share: float


@dataclass(frozen=True)
class Bars:
    parts: tuple[Bar, ...]


@dataclass(frozen=True)
class Lane:
    """What runs one after another: spans of time, each of a kind, from 0 to 1 of the whole."""

    name: str
    spans: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Lanes:
    """What runs beside each other; `whole` says how long that is."""

    lanes: tuple[Lane, ...]
    whole: str

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind for lane in self.lanes for *_, kind in lane.spans))


@dataclass(frozen=True)
class Point:
    """A place in a plot, and both of its numbers as text."""

    x: float
    y: float
    across: str
    up: str


@dataclass(frozen=True)
class Plot:
    """A staircase through points, from left to right, and what is told `across` and `up`."""

    across: str
    up: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Outcome:
    """The conclusion, in one sentence, and whether it is positive."""

    good: bool
    text: str


Block = str | Heading | Table | Script | Bars | Lanes | Plot | Outcome


def below(blocks: Iterable[Block], levels: int = 1) -> Iterator[Block]:
    """The same with headings `levels` lower, for use inside another page."""
    for block in blocks:
        yield Heading(block.level + levels, block.text) if isinstance(block, Heading) else block
