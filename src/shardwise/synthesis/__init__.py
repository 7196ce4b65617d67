"""From the rows of many calls to the rule of an operator."""

from ._challenge import challenges, contradicted
from ._study import Budget, Study, confirms, studies, study_calls, synthesize
from ._sweep import ENOUGH, Sweep, sweep

__all__ = [
    "ENOUGH",
    "Budget",
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
