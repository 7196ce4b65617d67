"""How operators may be sharded: the rule language and factors, clauses, and rules made of them."""

from ._bind import DIM_ARGUMENTS, Bound, Reading, bind, named_arguments
from ._clause import Clause, Term
from ._expression import Scope
from ._factors import Factor, FactorRule, Kind, TensorFactors
from ._from_rows import factors_of_call
from ._language import Template, rule_for
from ._recorder import Recorder
from ._rule import Rule, overload

__all__ = [
    "DIM_ARGUMENTS",
    "Bound",
    "Clause",
    "Factor",
    "FactorRule",
    "Kind",
    "Reading",
    "Recorder",
    "Rule",
    "Scope",
    "Template",
    "TensorFactors",
    "Term",
    "bind",
    "factors_of_call",
    "named_arguments",
    "overload",
    "rule_for",
]
