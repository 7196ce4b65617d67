"""How operators may be sharded: the rule language and factors, clauses, and rules made of them."""

from ._bind import DIM_ARGUMENTS, Bound, Reading, bind, named_arguments
from ._clause import Clause, Term
from ._expression import Scope
from ._factors import Factor, FactorRule, Kind, TensorFactors
from ._from_rows import factors_of_call
from ._language import Template, rule_for
from ._local import local_call, require_form
from ._local_sizes import VIEWS, is_size_argument
from ._piece import Piece
from ._recorder import Recorder
from ._rule import Rule, overload
from .hand import hand_rows, hand_written

__all__ = [
    "DIM_ARGUMENTS",
    "VIEWS",
    "Bound",
    "Clause",
    "Factor",
    "FactorRule",
    "Kind",
    "Piece",
    "Reading",
    "Recorder",
    "Rule",
    "Scope",
    "Template",
    "TensorFactors",
    "Term",
    "bind",
    "factors_of_call",
    "hand_rows",
    "hand_written",
    "is_size_argument",
    "local_call",
    "named_arguments",
    "overload",
    "require_form",
    "rule_for",
]
