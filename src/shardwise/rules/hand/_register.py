"""The table of hand-written rules, by overload, and the decorator that fills it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...calls import Shape, overload
from ...placements import Row
from ..hand._call import HandCall

HandRule = Callable[[HandCall], Iterator[Row]]

_RULES: dict[str, HandRule] = {}


def hand(*ops: str) -> Callable[[HandRule], HandRule]:
    """Give overloads (`aten.view.default`) a rule: a function from a call to its rows, all replicated aside."""

    def register(rule: HandRule) -> HandRule:
        for op in ops:
            assert op not in _RULES, f"{op} has two hand-written rules"
            _RULES[op] = rule
        return rule

    return register


def hand_written() -> list[str]:
    """The overloads that have a hand-written rule."""
    return sorted(_RULES)


def is_by_hand(op: str) -> bool:
    """True if an overload has a hand-written rule."""
    return op in _RULES


def hand_rows(
    op: str, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Sequence[Shape | None]
) -> list[Row] | None:
    """All rows of a call by the hand-written rule of `op`, all replicated aside; None if it has no such rule.

    Tensors may be anything with a shape and a dtype; `outputs` are the shapes of the call's outputs, lists one by
    one, None for one that is not returned.
    """
    rule = _RULES.get(op)
    if rule is None:
        return None
    call = HandCall(overload(op), args, dict(kwargs), outputs)
    return list(dict.fromkeys(row for row in rule(call) if not row.is_replicated))
