"""Agreement between ranks: what fails on one of them is an error on all of them, and nobody waits for the dead."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch.distributed as dist

from ..dtensor import default_store
from ..errors import UsageError

# Calls of sharded models are numbered alike on every rank, so that a mistake explains what fails in its own call only.
_calls = itertools.count()

Made = TypeVar("Made")


def agreed(stage: str, make: Callable[[], Made]) -> Made:
    """What `make` gives, if it gives something on every rank; otherwise every rank raises, naming who failed.

    `make` must not communicate.
    """
    made: Made | None = None
    problem: BaseException | None = None
    try:
        made = make()
    except Exception as error:
        problem = error
    told: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(told, None if problem is None else _told(problem))
    failed = [rank for rank, text in enumerate(told) if text is not None]
    if failed:
        others = "" if len(failed) == 1 else f" (and on {len(failed) - 1} more)"
        raise UsageError(f"{stage} failed on rank {failed[0]}{others}: {told[failed[0]]}") from problem
    return cast(Made, made)


def from_first(value: Any) -> Any:
    """The first rank's value, on every rank."""
    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]


@contextmanager
def told_to_others() -> Iterator[str]:
    """A mistake inside is made known to the other ranks before it is raised here; the key is for `explained`."""
    key = f"shardwise/fault/{next(_calls)}"
    try:
        yield key
    except UsageError as error:
        default_store().set(key, f"rank {dist.get_rank()} stopped: {error}")
        raise


@contextmanager
def explained(key: str) -> Iterator[None]:
    """A collective that fails inside because another rank has stopped says so, and why that one stopped."""
    try:
        yield
    except RuntimeError as error:
        if default_store().check([key]):
            raise UsageError(default_store().get(key).decode()) from error
        raise


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
