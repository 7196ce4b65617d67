"""Strategies, tests and reports of a studied operator as source."""

from ._report import report, yaml_report
from ._strategy import emit_strategy
from ._tests import emit_tests
from .harness import analyze_and_synthesize, discover_strategies

__all__ = [
    "analyze_and_synthesize",
    "discover_strategies",
    "emit_strategy",
    "emit_tests",
    "report",
    "yaml_report",
]
