"""How a call may be sharded, found by running it on pieces and comparing with the whole."""

from ._call import Call
from ._discover import Policy, check, discover
from ._emit_strategy import emit_strategy
from ._emit_tests import emit_tests
from ._found import Counterexample, Found, Verdict
from ._isolated import Crash, run_isolated
from ._judge import Expected
from ._laboratory import Laboratory, Unjudgeable
from ._ops import op_name, resolve_op
from ._report import report, yaml_report
from ._samples import opinfos, samples
from ._sizes import Sized, example_sizes
from ._study import Study, studies, synthesize
from ._values import adversarial, generators

__all__ = [
    "Call",
    "Counterexample",
    "Crash",
    "Expected",
    "Found",
    "Laboratory",
    "Policy",
    "Sized",
    "Study",
    "Unjudgeable",
    "Verdict",
    "adversarial",
    "check",
    "discover",
    "emit_strategy",
    "emit_tests",
    "example_sizes",
    "generators",
    "op_name",
    "opinfos",
    "report",
    "resolve_op",
    "run_isolated",
    "samples",
    "studies",
    "synthesize",
    "yaml_report",
]
