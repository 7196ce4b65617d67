"""The bridge to DTensor: the one room that touches PyTorch's private DTensor modules."""

from ._audit import audit, audit_call
from ._calls import OverloadCall, most_telling, overload_calls, telling_calls
from ._findings import Audit, Missing, Unsupported, Wrong
from ._hooks import use_search
from ._install import install, uninstall
from ._lists import run_step_on_all
from ._read import Answer, Unanswered, answers, ask, read, registration
from ._record import Recorded, record_collectives
from ._redistribute import layout_of, local_of, redistribute, run_plan
from ._register import RuleLike, extend, register, registered, unregister
from ._reproduce import Reproduction, execute, reproduce
from ._steps import run_step
from ._store import default_store

__all__ = [
    "Answer",
    "Audit",
    "Missing",
    "OverloadCall",
    "Recorded",
    "Reproduction",
    "RuleLike",
    "Unanswered",
    "Unsupported",
    "Wrong",
    "answers",
    "ask",
    "audit",
    "audit_call",
    "default_store",
    "execute",
    "extend",
    "install",
    "layout_of",
    "local_of",
    "most_telling",
    "overload_calls",
    "read",
    "record_collectives",
    "redistribute",
    "register",
    "registered",
    "registration",
    "reproduce",
    "run_plan",
    "run_step",
    "run_step_on_all",
    "telling_calls",
    "uninstall",
    "unregister",
    "use_search",
]
