"""How a call may be sharded, found by running it on pieces and comparing with the whole."""

from ._call import Call
from ._challenge import challenges, contradicted
from ._discover import Policy, check, discover
from ._emit_strategy import emit_strategy
from ._emit_tests import emit_tests
from ._found import Counterexample, Found, Verdict
from ._given import held_as_given
from ._isolated import Crash, discover_isolated, run_isolated
from ._judge import Expected
from ._laboratory import Laboratory, Unjudgeable
from ._ops import op_name, resolve_op
from ._report import report, yaml_report
from ._samples import foreach_samples, samples, telling_sample
from ._sizes import Sized, example_sizes
from ._study import Budget, Study, confirms, studies, study_calls, synthesize
from ._sweep import ENOUGH, Sweep, sweep
from ._torch import foreach_opinfos, is_composite, opinfos
from ._values import adversarial, generators

__all__ = [
    "ENOUGH",
    "Budget",
    "Call",
    "Counterexample",
    "Crash",
    "Expected",
    "Found",
    "Laboratory",
    "Policy",
    "Sized",
    "Study",
    "Sweep",
    "Unjudgeable",
    "Verdict",
    "adversarial",
    "challenges",
    "check",
    "confirms",
    "contradicted",
    "discover",
    "discover_isolated",
    "emit_strategy",
    "emit_tests",
    "example_sizes",
    "foreach_opinfos",
    "foreach_samples",
    "generators",
    "held_as_given",
    "is_composite",
    "op_name",
    "opinfos",
    "report",
    "resolve_op",
    "run_isolated",
    "samples",
    "studies",
    "study_calls",
    "sweep",
    "synthesize",
    "telling_sample",
    "yaml_report",
]
