"""`Shown`: what a result needs to show itself."""

from collections.abc import Iterable

from ._blocks import Block
from ._html import as_fragment
from ._text import as_text


class Shown:
    """A result that prints as text and stands in a notebook as HTML, both made of the same blocks."""

    def blocks(self) -> Iterable[Block]:
        """What there is to show, beginning with a heading of level 1."""
        raise NotImplementedError

    def __str__(self) -> str:
        return as_text(self.blocks())

    def _repr_html_(self) -> str:
        return as_fragment(self.blocks())
