"""Work in threads, so that the calling thread stays free for the clock, the log and Ctrl-C.

The threads are daemons: a process may end while one of them is inside compiled code that cannot be stopped.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

Made = TypeVar("Made")


class Threads:
    """Jobs that run in one thread each. An exception in a job is raised by `join`."""

    def __init__(self, jobs: Sequence[Callable[[], None]]) -> None:
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(job,), daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._failures.append(error)

    @property
    def running(self) -> bool:
        """True if a job is still running, and none has failed."""
        return not self._failures and any(thread.is_alive() for thread in self._threads)

    def join(self, deadline: float) -> None:
        """Wait until all have ended, or until the deadline."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for failure in self._failures:
            raise failure


def in_time(job: Callable[[], Made], deadline: float) -> Made | None:
    """The result of a job; None if the deadline (of `time.monotonic`) comes first, and the job continues unattended."""
    made: list[Made] = []
    Threads([lambda: made.append(job())]).join(deadline)
    return made[0] if made else None
