"""How operators may be sharded: the rule language and factors."""

from ._factors import Factor, FactorRule, Kind, TensorFactors
from ._language import Template

__all__ = ["Factor", "FactorRule", "Kind", "Template", "TensorFactors"]
