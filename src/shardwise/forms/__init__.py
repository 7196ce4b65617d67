"""Local forms: how one rank runs an operator whose call on pieces differs from the call on the whole."""

from ._local_call import depends_on_positions, local_call, operator_by, require_form
from ._piece import Held, Operator, Piece
from ._streams import draw, draws_whole, uniform

__all__ = [
    "Held",
    "Operator",
    "Piece",
    "depends_on_positions",
    "draw",
    "draws_whole",
    "local_call",
    "operator_by",
    "require_form",
    "uniform",
]
