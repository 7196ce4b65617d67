"""The table of hand-written rules, by overload, and the decorator that fills it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ...calls import Call
from ...errors import UsageError
from ...placements import Row
from .._domain import is_in_domain
from .._partials import partials_fit, results_fit

HandRule = Callable[[Call], Iterable[Row]]

_RULES: dict[str, HandRule] = {}
# Rows that operators have besides, each function of them by a name of its own.
_MORE: dict[str, dict[str, HandRule]] = {}


def hand(*ops: str) -> Callable[[HandRule], HandRule]:
    """Give overloads (`aten.view.default`) a rule: a function from a call to its rows, all replicated aside.

    >>> @hand("mylib.scale.default")
    ... def scale(call: Call) -> Iterable[Row]:
    ...     for dim in range(len(call.shape("x"))):
    ...         yield row_of(call, {"x": shard(dim)}, shard(dim))
    """

    def register(rule: HandRule) -> HandRule:
        for op in ops:
            if op in _RULES:
                raise UsageError(f"{op} has a rule written by hand already: an operator has one")
            _RULES[op] = rule
        return rule

    return register


def more_rows(*ops: str, name: str) -> Callable[[HandRule], HandRule]:
    """Give overloads rows besides those of their rules, wherever these are from; `name` tells several such functions
    apart, and one of the same name takes the place of the one before."""

    def register(rule: HandRule) -> HandRule:
        for op in ops:
            _MORE.setdefault(op, {})[name] = rule
        return rule

    return register


@contextmanager
def own_rules() -> Iterator[None]:
    """Rules that are registered inside are forgotten afterwards."""
    before, more = dict(_RULES), {op: dict(each) for op, each in _MORE.items()}
    try:
        yield
    finally:
        _RULES.clear()
        _RULES.update(before)
        _MORE.clear()
        _MORE.update(more)


def hand_written() -> list[str]:
    """The overloads that have a hand-written rule."""
    return sorted(_RULES)


def is_by_hand(op: str) -> bool:
    """True if an overload has a hand-written rule."""
    return op in _RULES


def hand_rows(call: Call) -> list[Row] | None:
    """All rows of a call by the hand-written rule of its operator, all replicated aside; None if it has none. A call
    that the operator is not meant for has none; rows with partials that the dtype of an input or output does not have
    are left out."""
    rule = _RULES.get(call.name)
    return None if rule is None else _rows(rule, call)


def rows_besides(call: Call) -> list[Row]:
    """The rows that `more_rows` gives a call."""
    return [row for rule in _MORE.get(call.name, {}).values() for row in _rows(rule, call)]


def _rows(rule: HandRule, call: Call) -> list[Row]:
    if not is_in_domain(call):
        return []
    rows = (row for row in rule(call) if not row.is_replicated and partials_fit(row.inputs, call.tensors))
    return [row for row in dict.fromkeys(rows) if not row.is_impossible and results_fit(row, call)]
