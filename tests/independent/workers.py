"""Work in processes of its own, so that a kernel that crashes or hangs ends its worker and not the run.

A worker is forked for some items at a time and sends results as they come. Before it runs anything it writes down what,
in memory that it shares with the parent: when it dies, the parent knows what it was running. That is to blame only if
it ends a fresh worker, too: kernels that write outside of their tensors end whatever runs after them.
"""

import faulthandler
import mmap
import multiprocessing
import os
import pickle
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

import torch

# Seconds without a result after which a worker hangs, and bytes that it may take beside what the parent has.
PATIENCE, MEMORY = 120.0, 3 << 30
_NOTE = 8192

Item = TypeVar("Item")
Mark = Callable[[str], None]
Work = Callable[[Item, Mark], Any]


@dataclass(frozen=True)
class Died:
    """A worker's end: what it was running, and the signal, or that it hangs."""

    running: str
    cause: str


@dataclass(frozen=True)
class Failed:
    """A mistake in the work itself, not a crash."""

    running: str
    traceback: str


class _Worker:
    def __init__(self, work: Work, items: Sequence[Any]) -> None:
        context = multiprocessing.get_context("fork")
        self.items, self.done, self.heard = items, 0, time.monotonic()
        self.note = mmap.mmap(-1, _NOTE)
        self.connection, sending = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(work, items, self.note, sending))
        self.process.start()
        sending.close()

    @property
    def hangs(self) -> bool:
        return time.monotonic() - self.heard > PATIENCE

    def received(self) -> Any:
        """Its next result; None at its end."""
        try:
            result = pickle.loads(self.connection.recv_bytes())
        except EOFError:
            return None
        self.done, self.heard = self.done + 1, time.monotonic()
        return result

    def ended(self) -> Died | None:
        """Wait for its end; None if it had nothing left to do."""
        hangs = self.process.is_alive() and self.hangs
        if hangs:
            self.process.kill()
        self.process.join()
        code, running = self.process.exitcode, _read(self.note)
        self.connection.close()
        self.note.close()
        if self.done == len(self.items):
            return None
        return Died(running, "hangs" if hangs else signal.Signals(-code).name if code < 0 else f"exit {code}")


def run(work: Work, items: Sequence[Item], jobs: int, batch: int) -> Iterator[tuple[Item, Any]]:
    """`work` on all items, `batch` of them in a process; each with its result, in the order in which they come, or with
    `Died` or `Failed`."""
    waiting = [items[i : i + batch] for i in range(0, len(items), batch)][::-1]
    working: list[_Worker] = []
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                working.append(_Worker(work, waiting.pop()))
            ready = wait([w.connection for w in working], timeout=1.0)
            for worker in list(working):
                result = worker.received() if worker.connection in ready else None
                if result is not None:
                    yield worker.items[worker.done - 1], result
                elif worker.connection in ready or worker.hangs:
                    working.remove(worker)
                    if (died := worker.ended()) is not None:
                        is_fresh = worker.done == 0
                        if is_fresh:
                            yield worker.items[0], died
                        waiting.append(worker.items[worker.done + is_fresh :])
    finally:
        for worker in working:
            worker.process.kill()


def _work(work: Work, items: Sequence[Any], note: mmap.mmap, sending: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # LAPACK prints there
    os.dup2(quiet, 2)
    faulthandler.disable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def mark(text: str) -> None:
        encoded = text.encode()[: _NOTE - 1] + b"\0"
        note[: len(encoded)] = encoded

    for item in items:
        mark(str(item))
        try:
            result = work(item, mark)
        except Exception:
            result = Failed(_read(note), traceback.format_exc())
        sending.send_bytes(pickle.dumps(result))  # by value: torch's own pipes share memory
    sending.close()
    os._exit(0)


def _read(note: mmap.mmap) -> str:
    return note[:].partition(b"\0")[0].decode(errors="replace")
