"""From the rows of many calls to the rule of an operator."""

from ._challenge import challenges, contradicted
from ._policy import Policy, synthesize
from ._study import Budget, Example, Study, confirms, studies, study_calls
from ._sweep import ENOUGH, Sweep, sweep

__all__ = [
    "ENOUGH",
    "Budget",
    "Example",
    "Policy",
    "Study",
    "Sweep",
    "challenges",
    "confirms",
    "contradicted",
    "studies",
    "study_calls",
    "sweep",
    "synthesize",
]
