"""Reports that people look at: a plan as one HTML file that needs no other."""

from ._document import document
from ._page import plan_page

__all__ = ["document", "plan_page"]
