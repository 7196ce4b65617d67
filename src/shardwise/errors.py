"""The exception for mistakes of the caller.

The message is one sentence: what is wrong, where, and what would be right. The command line prints it
and exits with status 2.
"""

from typing import Any

# Types whose values are shown in messages.
_SHORT = (int, float, str, type(None))


class UsageError(ValueError):
    """A mistake of the caller, described in one sentence."""


def require(value: object, kind: Any, what: str, right: str) -> None:
    """Refuse a value that is not of a type (or types): `what` names it, `right` describes a correct value."""
    if not isinstance(value, kind):
        given = repr(value) if isinstance(value, _SHORT) else f"of type {type(value).__name__}"
        raise UsageError(f"{what} is {given}: give {right}")


def require_given(value: object, function: str, what: str, right: str) -> None:
    """Refuse a call of a public function without a required argument: `what` names it, `right` is a correct call."""
    if value is None:
        raise UsageError(f"{function} needs {what}: write {right}")


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type, if there is no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
