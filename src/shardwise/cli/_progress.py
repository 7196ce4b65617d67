"""A bar on the terminal for each stage of something that takes minutes."""

from typing import Any

from rich.console import Console


class StageProgress:
    """A bar on the terminal for each stage; nothing where there is no terminal or it would be in the way."""

    def __init__(self, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, disable=quiet or not console.is_terminal)
        self.stages: dict[str, Any] = {}

    def __enter__(self) -> "StageProgress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self.stages:
            self.stages[stage] = self.bar.add_task(stage, total=total)
        self.bar.update(self.stages[stage], completed=done)
