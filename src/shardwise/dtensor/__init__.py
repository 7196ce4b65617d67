"""The bridge to DTensor: the one room that touches PyTorch's private DTensor modules."""

from ._decompositions import traced_once
from ._group import arrived, begin_along, with_late_waits
from ._hooks import use_search
from ._install import install, reset, uninstall
from ._lists import run_step_on_all
from ._on_host import dtensor_on_host
from ._pipeline import (
    SCHEDULES,
    Action,
    ActionKind,
    pipeline_actions,
    run_schedule,
    stage_ranks,
    torch_schedule,
)
from ._read import Decision, NoDecision, decide, decisions, read, registration
from ._record import Recorded, record_collectives
from ._redistribute import layout_of, local_of, redistribute, run_chain
from ._register import extend, register, registered, unregister
from ._state import RuleLike
from ._steps import before_last_wait, join_collectives, run_step
from ._store import default_store
from ._wrong import REFUTED, wrong_operators

__all__ = [
    "REFUTED",
    "SCHEDULES",
    "Action",
    "ActionKind",
    "Decision",
    "NoDecision",
    "Recorded",
    "RuleLike",
    "arrived",
    "before_last_wait",
    "begin_along",
    "decide",
    "decisions",
    "default_store",
    "dtensor_on_host",
    "extend",
    "install",
    "join_collectives",
    "layout_of",
    "local_of",
    "pipeline_actions",
    "read",
    "record_collectives",
    "redistribute",
    "register",
    "registered",
    "registration",
    "reset",
    "run_chain",
    "run_schedule",
    "run_step",
    "run_step_on_all",
    "stage_ranks",
    "torch_schedule",
    "traced_once",
    "uninstall",
    "unregister",
    "use_search",
    "with_late_waits",
    "wrong_operators",
]
