"""DTensor's own rules validated by experiment, with reproductions."""

from ._audit import audit, audit_call, audit_claims
from ._designed import designed_calls, optional_tensors
from ._findings import Audit, Missing, Unsupported, Wrong
from ._kept import read_audit
from ._reproduce import Reproduction, execute, reproduce

__all__ = [
    "Audit",
    "Missing",
    "Reproduction",
    "Unsupported",
    "Wrong",
    "audit",
    "audit_call",
    "audit_claims",
    "designed_calls",
    "execute",
    "optional_tensors",
    "read_audit",
    "reproduce",
]
