"""DTensor's own rules validated by experiment, with reproductions."""

from ._audit import audit, audit_call
from ._findings import Audit, Missing, Unsupported, Wrong
from ._reproduce import Reproduction, execute, reproduce

__all__ = [
    "Audit",
    "Missing",
    "Reproduction",
    "Unsupported",
    "Wrong",
    "audit",
    "audit_call",
    "execute",
    "reproduce",
]
