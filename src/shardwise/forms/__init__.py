"""Forms: how one rank runs an operator whose call on pieces differs from the call on the whole."""

from ._cross_entropy import chunk_size
from ._cross_entropy import linear_cross_entropy as linear_cross_entropy_in_chunks
from ._group import Group, Request, run_alone, run_together
from ._group import Run as GroupRun
from ._local_call import (
    call_in_group,
    calls_together,
    communicating,
    communicating_operators,
    depends_on_positions,
    is_communicating,
    local_call,
    operator_by,
    operators_with,
    require_form,
)
from ._operator import Operator
from ._piece import Held, Piece
from ._streams import draw, draws_whole, uniform

__all__ = [
    "Group",
    "GroupRun",
    "Held",
    "Operator",
    "Piece",
    "Request",
    "call_in_group",
    "calls_together",
    "chunk_size",
    "communicating",
    "communicating_operators",
    "depends_on_positions",
    "draw",
    "draws_whole",
    "is_communicating",
    "linear_cross_entropy_in_chunks",
    "local_call",
    "operator_by",
    "operators_with",
    "require_form",
    "run_alone",
    "run_together",
    "uniform",
]
