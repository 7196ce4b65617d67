"""Processes for the ranks of a mesh on this machine, talking through gloo on the loopback interface.

Each process runs one function with the same arguments and sends back what it returns. When one of them fails the
others are stopped, and no process is left running in any case.
"""

import faulthandler
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from ..errors import UsageError
from ..modules import module_of


def on_ranks(
    function: Callable[..., Any],
    *args: Any,
    ranks: int,
    timeout: float = 300.0,
    files: Mapping[str, str] | None = None,
) -> list[Any]:
    """The results of `function(*args)` on each of `ranks` processes.

    The function and its arguments must be importable by name; `files` are modules to be loaded from a file
    first, by name, where they cannot be imported.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        try:
            parcel = pickle.dumps((function, args))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UsageError(
                f"the model cannot be sent to the processes of the ranks: {error}; define it in a module "
                "that they can import"
            ) from None
        job.write_bytes(pickle.dumps((sys.path, dict(files or {}), timeout, parcel)))
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        command = [sys.executable, "-m", f"{__package__}._rank", str(job), str(ranks)]
        processes = [
            subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.DEVNULL, stderr=log)
            for rank, log in enumerate(_logs(Path(folder), ranks))
        ]
        try:
            late = not _ended(processes, time.monotonic() + timeout)
            statuses = [process.poll() for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return _results(Path(folder), statuses, late, timeout)


def _logs(folder: Path, ranks: int) -> Iterator[IO[bytes]]:
    for rank in range(ranks):
        with (folder / f"log{rank}").open("wb") as log:
            yield log


def _ended(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> bool:
    """Wait until all have ended, or a second after one of them has failed; False if it took too long."""
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            deadline = min(deadline, time.monotonic() + 2.0)
        if time.monotonic() > deadline:
            return any(process.poll() for process in processes)
        time.sleep(0.02)
    return True


def _results(folder: Path, statuses: Sequence[int | None], late: bool, timeout: float) -> list[Any]:
    """The results of the ranks. One without a status did not end: it was stopped because another failed."""
    if late:
        logs = [(folder / f"log{rank}").read_text(errors="replace")[-2000:] for rank in range(len(statuses))]
        where = "\n".join(f"rank {rank}:\n{log}" for rank, log in enumerate(logs))
        raise TimeoutError(f"the ranks did not end within {timeout:.0f} seconds\n{where}")
    found: list[Any] = []
    problems: list[tuple[bool, float, str]] = []  # whether the user can help it, when it happened, and what
    for rank, status in enumerate(statuses):
        file = folder / f"result{rank}"
        if file.exists():
            verdict, when, result = pickle.loads(file.read_bytes())
            found.append(result)
            if verdict != "ok":
                problems.append((verdict != "usage", when, result))
        elif status is not None:
            log = (folder / f"log{rank}").read_text(errors="replace")
            # Killed or crashed: whatever others raised followed from that.
            problems.append((True, 0.0, f"rank {rank} ended with status {status}:\n{log[-3000:]}"))
    if problems:
        # A user's mistake explains the other failures, and so does the first one: others lose their connection to it.
        unforeseen, _, text = min(problems)
        raise RuntimeError(text) if unforeseen else UsageError(text)
    return found


def run_rank(job: Path, ranks: int, rank: int) -> None:
    """One rank's part: run the function, and write its result or its error to a file."""
    sys.path[:], files, timeout, parcel = pickle.loads(job.read_bytes())
    faulthandler.dump_traceback_later(0.9 * timeout)  # into the log: where it hangs, if it does
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{job.with_name('store')}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout),
    )
    verdict = "ok"
    try:
        function, args = _opened(parcel, files)
        result = function(*args)
    except UsageError as error:
        verdict, result = "usage", str(error)
    except Exception:
        verdict, result = "error", f"on rank {rank}:\n{traceback.format_exc()}"
    when = time.time()
    finished = job.with_name(f"result{rank}")
    finished.with_suffix(".part").write_bytes(pickle.dumps((verdict, when, result)))
    finished.with_suffix(".part").rename(finished)
    if verdict != "ok":
        os._exit(1)  # at once: others may be waiting for this one in a collective
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may still release tensors, which aborts a process that ends as Python does


def _opened(parcel: bytes, files: Mapping[str, str]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    try:
        for name, file in files.items():
            if not _is_importable(name):
                module_of(file, name)
        return pickle.loads(parcel)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the ranks cannot import what they are to run ({error}): define the model in a module that they can import"
        ) from error


def _is_importable(name: str) -> bool:
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ImportError:  # of the package that it is in
        return False
