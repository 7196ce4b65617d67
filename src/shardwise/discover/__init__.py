"""How a call may be sharded, found by running it on pieces and comparing with the whole."""

from ._discover import Policy, check, discover
from ._emit_strategy import emit_strategy
from ._emit_tests import emit_tests
from ._found import Counterexample, Found, Verdict
from ._ops import op_name, resolve_op
from ._report import report, yaml_report
from ._study import Study, studies, synthesize
from ._values import adversarial, generators

__all__ = [
    "Counterexample",
    "Found",
    "Policy",
    "Study",
    "Verdict",
    "adversarial",
    "check",
    "discover",
    "emit_strategy",
    "emit_tests",
    "generators",
    "op_name",
    "report",
    "resolve_op",
    "studies",
    "synthesize",
    "yaml_report",
]
