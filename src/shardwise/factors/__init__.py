"""Factors: the indices that an operator loops over, derived from its rows or written in a language like einsum's."""

from ._factors import Factor, FactorRule, Kind, TensorFactors
from ._from_rows import factors_of, factors_of_call
from ._language import Template, rule_for

__all__ = [
    "Factor",
    "FactorRule",
    "Kind",
    "Template",
    "TensorFactors",
    "factors_of",
    "factors_of_call",
    "rule_for",
]
