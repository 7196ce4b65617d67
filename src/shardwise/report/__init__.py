"""Reports: a plan as one self-contained HTML file, a layout as a grid on the terminal."""

from ._audit import ISSUE, audit_issues, audit_markdown, audit_page
from ._document import document
from ._grid import picture_of, pieces
from ._page import plan_page
from ._prose import prose_page

__all__ = [
    "ISSUE",
    "audit_issues",
    "audit_markdown",
    "audit_page",
    "document",
    "picture_of",
    "pieces",
    "plan_page",
    "prose_page",
]
