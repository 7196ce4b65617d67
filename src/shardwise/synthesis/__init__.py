"""From the rows of many calls to the rule of an operator."""

from ._policy import Policy, synthesize
from ._refutation import contradicted, random_calls, triples
from ._study import Budget, Observation, Study, studies, study_calls, why_no_rule
from ._sweep import MOST_PAIRS, Design, Sweep, in_domain, sweep
from ._witness import Witness

__all__ = [
    "MOST_PAIRS",
    "Budget",
    "Design",
    "Observation",
    "Policy",
    "Study",
    "Sweep",
    "Witness",
    "contradicted",
    "in_domain",
    "random_calls",
    "studies",
    "study_calls",
    "sweep",
    "synthesize",
    "triples",
    "why_no_rule",
]
