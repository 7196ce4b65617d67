"""How operators may be sharded: the rule language and factors, clauses, and rules made of them."""

from ._bind import DIM_ARGUMENTS, Bound, Reading, bind, call_text, flat_outputs, named_arguments
from ._book import VERDICTS, Book, Entry, require_no_others, write
from ._cases import UNIMPORTANT, Case, constants, is_covered, plain
from ._clause import Clause, Term
from ._expression import Scope
from ._factors import Factor, FactorRule, Kind, TensorFactors
from ._from_rows import factors_of_call
from ._language import Template, rule_for
from ._local import local_call, require_form
from ._local_sizes import VIEWS, is_size_argument
from ._lookup import SHIPPED, book, book_rows, rows, rule, variant_by_hand
from ._piece import Piece
from ._recorder import BOOKKEEPING, Recorder
from ._rule import Rule, overload
from ._streams import draw, draws_whole, follows_positions, is_random
from ._variants import derived, is_in_place, variants_of
from .hand import hand_rows, hand_written, is_by_hand

__all__ = [
    "BOOKKEEPING",
    "DIM_ARGUMENTS",
    "SHIPPED",
    "UNIMPORTANT",
    "VERDICTS",
    "VIEWS",
    "Book",
    "Bound",
    "Case",
    "Clause",
    "Entry",
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
    "book",
    "book_rows",
    "call_text",
    "constants",
    "derived",
    "draw",
    "draws_whole",
    "factors_of_call",
    "flat_outputs",
    "follows_positions",
    "hand_rows",
    "hand_written",
    "is_by_hand",
    "is_covered",
    "is_in_place",
    "is_random",
    "is_size_argument",
    "local_call",
    "named_arguments",
    "overload",
    "plain",
    "require_form",
    "require_no_others",
    "rows",
    "rule",
    "rule_for",
    "variant_by_hand",
    "variants_of",
    "write",
]
