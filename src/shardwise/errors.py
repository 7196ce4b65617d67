"""What Shardwise raises when the caller made a mistake.

The message is one sentence: what is wrong, where, and what would be right. The command line prints it
and exits with status 2; nothing else about it is special.
"""

from typing import Any

# Types whose values are shown as they are.
_SHORT = (int, float, str, type(None))


class UsageError(ValueError):
    """A mistake in what the caller gave, told in one sentence."""


def require(value: object, kind: Any, what: str, right: str) -> None:
    """Refuse a value that is of no such type (or types): `what` it is, and what would be `right` to give."""
    if not isinstance(value, kind):
        given = repr(value) if isinstance(value, _SHORT) else f"of type {type(value).__name__}"
        raise UsageError(f"{what} is {given}: give {right}")


def require_given(value: object, function: str, what: str, right: str) -> None:
    """Refuse a call of a public function that lacks something: `what` it needs, and what would be `right` to write."""
    if value is None:
        raise UsageError(f"{function} needs {what}: write {right}")


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its kind, if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
