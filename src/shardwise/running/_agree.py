"""Agreement between ranks: a failure on one rank raises on all of them, so that none waits for a rank that stopped."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch.distributed as dist

from ..dtensor import default_store
from ..errors import UsageError

# Calls of sharded models have the same numbers on every rank, so that an error is only matched with its own call.
_calls = itertools.count()

_LONG_AGO = 1000  # calls, after which what ranks said of one is forgotten

Made = TypeVar("Made")


def agreed(stage: str, make: Callable[[], Made]) -> Made:
    """The result of `make()` if it succeeds on every rank; otherwise every rank raises, naming the ranks that failed.

    `make` must not communicate.
    """
    made: Made | None = None
    problem: BaseException | None = None
    try:
        made = make()
    except Exception as error:
        problem = error
    messages: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(messages, None if problem is None else _message(problem))
    failed = [rank for rank, text in enumerate(messages) if text is not None]
    if failed:
        others = "" if len(failed) == 1 else f" (and on {len(failed) - 1} more)"
        raise UsageError(f"{stage} failed on rank {failed[0]}{others}: {messages[failed[0]]}") from problem
    return cast(Made, made)


def from_first(value: Any) -> Any:
    """The first rank's value, on every rank."""
    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]


@contextmanager
def announced() -> Iterator[str]:
    """Publish a user's mistake raised inside to the other ranks before it is raised here; the key is for
    `explained`."""
    key = f"shardwise/fault/{next(_calls)}"
    try:
        yield key
    except UsageError as error:
        default_store().set(key, f"rank {dist.get_rank()} stopped: {error}")
        raise


def require_same_on_all_ranks(call: str, said: str) -> None:
    """Raise if a rank said something else of this call before. No rank waits for another."""
    store, (head, _, number) = default_store(), call.rpartition("/")
    before = store.compare_set(f"{call}/said", "", said).decode()
    if dist.get_rank() == 0:
        store.delete_key(f"{head}/{int(number) - _LONG_AGO}/said")
    if before != said:
        raise UsageError(f"rank {dist.get_rank()} is called with {said}, another rank with {before}")


@contextmanager
def explained(key: str) -> Iterator[None]:
    """If a collective inside fails because another rank has stopped, say so, and why that rank stopped."""
    try:
        yield
    except RuntimeError as error:
        if fault := _published(key):
            raise UsageError(fault) from error
        raise


def _published(key: str) -> str | None:
    """What a rank said when it stopped. A store that cannot tell (its host has ended, or ranks are simulated by torch's
    fake process group) must not hide the error that made one look."""
    try:
        return default_store().get(key).decode() if default_store().check([key]) else None
    except RuntimeError:
        return None


def _message(error: BaseException) -> str:
    return str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
