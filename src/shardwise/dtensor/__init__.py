"""The bridge to DTensor: the one room that touches PyTorch's private DTensor modules."""

from ._hooks import use_search
from ._record import Recorded, record_collectives
from ._redistribute import layout_of, redistribute, run_plan
from ._register import RuleLike, register, registered, unregister
from ._steps import run_step

__all__ = [
    "Recorded",
    "RuleLike",
    "layout_of",
    "record_collectives",
    "redistribute",
    "register",
    "registered",
    "run_plan",
    "run_step",
    "unregister",
    "use_search",
]
