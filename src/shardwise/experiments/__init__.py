"""How a call may be sharded, found by running it on pieces and comparing with the whole."""

from ._discover import ExperimentPolicy, check, discover, refuted, require_operator
from ._experiment import Case, Experiment
from ._found import Counterexample, Found, Verdict
from ._given import held_as_given
from ._isolated import Crash, discover_isolated, run_isolated
from ._judge import Expected
from ._laboratory import Laboratory, Unjudgeable, changes_nothing
from ._partials import WAYS
from ._trial import implies
from ._values import adversarial, ascending, generators, negative, normal, own_generators

__all__ = [
    "WAYS",
    "Case",
    "Counterexample",
    "Crash",
    "Expected",
    "Experiment",
    "ExperimentPolicy",
    "Found",
    "Laboratory",
    "Unjudgeable",
    "Verdict",
    "adversarial",
    "ascending",
    "changes_nothing",
    "check",
    "discover",
    "discover_isolated",
    "generators",
    "held_as_given",
    "implies",
    "negative",
    "normal",
    "own_generators",
    "refuted",
    "require_operator",
    "run_isolated",
]
