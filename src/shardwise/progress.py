"""How far a long piece of work is: the one way in which every part tells it."""

from typing import Protocol


class Progress(Protocol):
    """Is told that `done` of `total` steps of a stage are done; without a total nobody knows how many there are.

    `limit` are the seconds after which the stage ends in any case, `note` a word on how things stand.
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


def silent(*told: object, **more: object) -> None:
    """For callers who do not want to know."""
