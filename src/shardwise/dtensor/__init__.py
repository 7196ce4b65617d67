"""The bridge to DTensor: the one room that touches PyTorch's private DTensor modules."""

from ._record import Recorded, record_collectives
from ._redistribute import layout_of, redistribute, run_plan
from ._steps import run_step

__all__ = ["Recorded", "layout_of", "record_collectives", "redistribute", "run_plan", "run_step"]
