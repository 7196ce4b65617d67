"""The progress of long computations, reported in the same way by every room."""

from typing import Protocol


class Progress(Protocol):
    """Called when `done` of `total` steps of a stage are done; the total is None if it is unknown.

    `limit` is the time limit of the stage in seconds, `note` a short text on its state.
    """

    def __call__(
        self,
        stage: str,
        done: float = 0,
        total: float | None = None,
        *,
        limit: float | None = None,
        note: str = "",
    ) -> None: ...


def silent(*progress: object, **more: object) -> None:
    """Reports no progress."""
