"""How a call may be sharded, found by running it on pieces and comparing with the whole."""

from ._as_is import check_as_is
from ._candidate import implies
from ._confirm import Confirmations, confirm
from ._discover import ExperimentPolicy, check, check_rows, discover, open_rows, refuted, require_operator
from ._experiment import Division, Experiment
from ._isolated import Crash, discover_isolated, limited, run_isolated
from ._judge import Expected
from ._on_mesh import MeshExperiment, Tried, check_choice
from ._partials import WAYS
from ._results import Counterexample, Found, Verdict
from ._suite import RANKS, ExperimentSuite, Unjudgeable, changes_nothing
from ._values import add_generators, adversarial, ascending, generators, negative, normal, own_generators

__all__ = [
    "RANKS",
    "WAYS",
    "Confirmations",
    "Counterexample",
    "Crash",
    "Division",
    "Expected",
    "Experiment",
    "ExperimentPolicy",
    "ExperimentSuite",
    "Found",
    "MeshExperiment",
    "Tried",
    "Unjudgeable",
    "Verdict",
    "add_generators",
    "adversarial",
    "ascending",
    "changes_nothing",
    "check",
    "check_as_is",
    "check_choice",
    "check_rows",
    "confirm",
    "discover",
    "discover_isolated",
    "generators",
    "implies",
    "limited",
    "negative",
    "normal",
    "open_rows",
    "own_generators",
    "refuted",
    "require_operator",
    "run_isolated",
]
