"""What Shardwise raises when the caller made a mistake.

The message is one sentence: what is wrong, where, and what would be right. The command line prints it
and exits with status 2; nothing else about it is special.
"""


class UsageError(ValueError):
    """A mistake in what the caller gave, told in one sentence."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its kind, if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
