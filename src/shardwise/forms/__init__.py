"""Local forms: how one rank runs an operator whose call on pieces differs from the call on the whole."""

from ._local_call import local_call, require_form
from ._piece import Piece
from ._sizes import VIEWS
from ._streams import draw, draws_whole, follows_positions, is_random

__all__ = [
    "VIEWS",
    "Piece",
    "draw",
    "draws_whole",
    "follows_positions",
    "is_random",
    "local_call",
    "require_form",
]
