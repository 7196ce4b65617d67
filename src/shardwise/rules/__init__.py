"""How operators may be sharded: the rule language and factors, clauses, and rules made of them."""

from ._bind import Bound, Reading, bind
from ._book import VERDICTS, Book, Entry, require_no_others, write
from ._cases import Case, always_alike, constants, is_covered, plain
from ._clause import Clause, Term, merged
from ._editions import SHIPPED, edition, editions, is_beyond, next_to, opened, stands_on
from ._expression import Scope, names_in
from ._hand import (
    HandRule,
    hand,
    hand_rows,
    hand_written,
    is_by_hand,
    more_rows,
    own_rules,
    row_of,
    rows_besides,
)
from ._lookup import book, book_rows, offered_rows, rows, rows_left, rule, variant_by_hand
from ._partials import partials_fit
from ._rule import Rule
from ._variants import derived, is_in_place, variants_of

__all__ = [
    "SHIPPED",
    "VERDICTS",
    "Book",
    "Bound",
    "Case",
    "Clause",
    "Entry",
    "HandRule",
    "Reading",
    "Rule",
    "Scope",
    "Term",
    "always_alike",
    "bind",
    "book",
    "book_rows",
    "constants",
    "derived",
    "edition",
    "editions",
    "hand",
    "hand_rows",
    "hand_written",
    "is_beyond",
    "is_by_hand",
    "is_covered",
    "is_in_place",
    "merged",
    "more_rows",
    "names_in",
    "next_to",
    "offered_rows",
    "opened",
    "own_rules",
    "partials_fit",
    "plain",
    "require_no_others",
    "row_of",
    "rows",
    "rows_besides",
    "rows_left",
    "rule",
    "stands_on",
    "variant_by_hand",
    "variants_of",
    "write",
]
