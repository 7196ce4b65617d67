"""Local forms: how one rank runs an operator whose call on pieces differs from the call on the whole."""

from ._local_call import local_call, require_form
from ._piece import Piece
from ._streams import draw, draws_whole, uniform

__all__ = [
    "Piece",
    "draw",
    "draws_whole",
    "local_call",
    "require_form",
    "uniform",
]
