"""`Shown`: the base class of results that can be displayed."""

from collections.abc import Iterable

from ._blocks import Block
from ._html import as_fragment
from ._text import as_text


class Shown:
    """A result that is printed as text and displayed in a notebook as HTML, both from the same blocks."""

    def blocks(self) -> Iterable[Block]:
        """The content to display, beginning with a heading of level 1."""
        raise NotImplementedError

    def __str__(self) -> str:
        return as_text(self.blocks())

    def _repr_html_(self) -> str:
        return as_fragment(self.blocks())
