"""Running discovery in a child process, so that a crash of a native kernel costs one result and nothing else."""

import faulthandler
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..calls import Call
from ..errors import UsageError, first_line
from ..progress import Progress
from ._discover import ExperimentPolicy
from ._results import Found

# How much longer than its CPU time a child may take when others use the machine, too.
_PATIENCE = 30

# Threads fork one at a time: no child inherits the pipe of another, and libraries that watch forks refuse two at once.
_FORKING = threading.Lock()


def discover_isolated(
    policy: ExperimentPolicy, op: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Found:
    """`policy.discover` in a child process. If a kernel crashes, once more without empty shards, which is where most
    crashes come from; if it crashes again, the verdict is "crashed"."""
    for attempt in (policy, replace(policy, empty=False)):
        result = run_isolated(partial(_bare, attempt, op, args, kwargs))
        if not isinstance(result, Crash):
            return result
    reason = f"its process ended with {result}"
    call = Call(op, args, kwargs)
    return Found(call.name, (), "crashed", reason, arguments=call.arguments_text)


class Crash(str):
    """What ended a child process: the name of a signal, or an exception."""


def run_isolated(
    function: Callable[..., Any], timeout: float | None = 600, progress: Progress | None = None
) -> Any:
    """The function's result from a forked child; a `Crash` if a signal ended it, or after `timeout` seconds without
    progress.

    A `UsageError` of the child is raised here. With `progress` the function gets a callback, whose calls
    are repeated here.
    """
    context = multiprocessing.get_context("fork")
    with _FORKING:
        receiving, sending = context.Pipe(duplex=False)
        child = context.Process(target=_send, args=(sending, function, progress is not None), daemon=True)
        child.start()
        sending.close()
    try:
        outcome = "progress"
        while outcome == "progress":
            if not receiving.poll(timeout):
                return Crash("timeout")
            outcome, value = receiving.recv()
            if outcome == "progress" and progress is not None:
                progress(*value)
    except EOFError:
        child.join()
        code = child.exitcode or 0
        return Crash(signal.Signals(-code).name if code < 0 else f"exit status {code}")
    finally:
        child.kill()
        child.join()
    if outcome == "usage":
        raise UsageError(value)
    if outcome == "raised":
        return Crash(value)
    return value


def limited(function: Callable[[], Any], seconds: int) -> Any:
    """The function's result from a forked child with this much CPU time; a `Crash` if it takes more, if a signal ended
    it, or if it raised."""

    def run() -> Any:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        return function()

    try:
        return run_isolated(run, seconds * _PATIENCE)
    except UsageError as error:
        return Crash(str(error))


def _send(sending: Any, function: Callable[..., Any], reports: bool) -> None:
    def tell(stage: str, done: float = 0, total: float | None = None, **_: Any) -> None:
        sending.send(("progress", (stage, done, total)))

    with open(os.devnull, "w") as nowhere:
        for stream in (1, 2):  # kernels print warnings about unusual values, on either
            os.dup2(nowhere.fileno(), stream)
    faulthandler.disable()  # a crash is a result here
    torch.set_num_threads(1)  # a forked child that uses its parent's OpenMP threads hangs
    try:
        sending.send(("ok", function(tell) if reports else function()))
    except UsageError as error:
        sending.send(("usage", str(error)))
    except Exception as error:
        sending.send(("raised", f"{type(error).__name__}: {first_line(error)}"))


def _bare(
    policy: ExperimentPolicy, op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Found:
    """The result without its experiments, which cannot be sent between processes."""
    return replace(policy.discover(op, *args, **kwargs), candidates={}, dispatched=None)
