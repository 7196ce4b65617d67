"""Progress on the terminal: a line for each stage, with the remaining time where it is known.

A stage with counted steps has a bar; one with a time limit a bar towards it; any other a spinner with the elapsed time.
Progress is written to stderr and removed at the end; there is none without a terminal or with `--json`.
"""

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text


class Bars:
    """A `shardwise.progress.Progress` that draws bars. `title` is printed before the name of each stage."""

    def __init__(self, *, quiet: bool = False, title: str = "", console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self.title = title
        self.lines = _Lines(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True)),
            _Time(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._stages: dict[str, TaskID] = {}
        self._now: TaskID | None = None
        self._done = 0.0

    def __enter__(self) -> "Bars":
        self.lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.stop()

    def __call__(
        self,
        stage: str,
        done: float = 0,
        total: float | None = None,
        *,
        limit: float | None = None,
        note: str = "",
    ) -> None:
        timed = limit is not None
        again = done < self._done  # a stage with several parts, each counted separately
        if self._now is None or self._stages.get(stage) != self._now or again:
            self._begin(stage, limit if timed else total, timed)
        assert self._now is not None
        self._done = done
        self.lines.update(
            self._now, completed=None if timed else done, total=limit if timed else total, note=note
        )

    def _begin(self, stage: str, total: float | None, timed: bool) -> None:
        if self._now is not None:
            self.lines.update(self._now, total=1, completed=1, timed=False)
        if stage in self._stages:  # repeated: its old line is removed
            self.lines.remove_task(self._stages[stage])
        shown = f"{self.title}: {stage}" if self.title else stage
        self._now = self._stages[stage] = self.lines.add_task(shown, total=total, timed=timed, note="")


class _Lines(Progress):
    """Bars towards a time limit advance with the clock, even without reported progress."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            if task.fields.get("timed") and task.total is not None:
                task.completed = min(task.elapsed or 0.0, task.total)
        yield from super().get_renderables()


class _Time(ProgressColumn):
    """The remaining time where it is known, else the elapsed time."""

    def render(self, task: Task) -> Text:
        if task.finished_time is not None or task.total is None:
            return Text(_clock(task.finished_time or task.elapsed or 0.0))
        left = task.total - task.completed if task.fields.get("timed") else task.time_remaining
        return Text(_clock(task.elapsed or 0.0) if left is None else f"{_clock(left)} left")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
