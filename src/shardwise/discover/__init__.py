"""How a call may be sharded, found by running it on pieces and comparing with the whole."""

from ._discover import Policy, check, discover
from ._found import Counterexample, Found, Verdict
from ._ops import op_name, resolve_op
from ._values import adversarial, generators

__all__ = [
    "Counterexample",
    "Found",
    "Policy",
    "Verdict",
    "adversarial",
    "check",
    "discover",
    "generators",
    "op_name",
    "resolve_op",
]
