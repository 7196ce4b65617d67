"""The kinds of blocks. A plain text is a paragraph; `code` stands between backticks, in any text but a script's."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    """Level 1 is the title of all."""

    level: int
    text: str


@dataclass(frozen=True)
class Table:
    """A heading that begins with `>` is that of a column of numbers. Where all are empty, none is shown."""

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
    """Code that can be run, folded away where that is possible, and what it printed."""

    title: str
    code: str
    output: str


@dataclass(frozen=True)
class Bar:
    """A part of a whole: its amount in words, and the share that is drawn."""

    name: str
    amount: str
    share: float


@dataclass(frozen=True)
class Bars:
    parts: tuple[Bar, ...]


@dataclass(frozen=True)
class Outcome:
    """The one sentence that matters most, and whether it is good news."""

    good: bool
    text: str


Block = str | Heading | Table | Script | Bars | Outcome


def below(blocks: Iterable[Block], levels: int = 1) -> Iterator[Block]:
    """The same with headings that many levels lower, to stand inside something else."""
    for block in blocks:
        yield Heading(block.level + levels, block.text) if isinstance(block, Heading) else block
