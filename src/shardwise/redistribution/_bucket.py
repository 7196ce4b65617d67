"""What collectives take that run as one: of many small ones, the latency is paid once.

A bucket takes as long as one collective of all its bytes, and never less than at the rate of a full one. So a small
collective, however it is joined with others, takes no less than its bytes do at that rate.
"""

import numpy as np

from ..mesh import Link, Span

BUCKET = 25 * 2**20  # bytes that a bucket has at most, as many as those of `DistributedDataParallel`
JOINED = ("all_gather", "reduce_scatter", "all_reduce")
_DOMINATES = 0.5  # of the time of a small collective, what is not its bytes


def seconds_of(link: Link | Span, kind: str, sizes: np.ndarray, ranks: int, itemsize: int) -> np.ndarray:
    """Seconds of collectives that run alone, by their bytes."""
    return link.times(kind, sizes, ranks, itemsize=itemsize)  # type: ignore[arg-type]


def bucket_seconds(link: Link | Span, kind: str, sizes: np.ndarray, ranks: int, itemsize: int) -> np.ndarray:
    """Seconds of one collective in the place of several, by the bytes of all together."""
    return np.maximum(
        seconds_of(link, kind, sizes, ranks, itemsize), _full(link, kind, sizes, ranks, itemsize)
    )


def least_seconds(link: Link | Span, kind: str, sizes: np.ndarray, ranks: int, itemsize: int) -> np.ndarray:
    """What collectives add at least to the step: their seconds, or less where they are small enough for a bucket."""
    own = seconds_of(link, kind, sizes, ranks, itemsize)
    if kind not in JOINED:
        return own
    full = _full(link, kind, sizes, ranks, itemsize)
    return np.where(full < (1 - _DOMINATES) * own, full, own)


def is_small(link: Link | Span, kind: str, size: int, ranks: int, itemsize: int) -> bool:
    """Whether a collective takes so long by its latency that it is joined with others."""
    sizes = np.array([float(size)])
    own = seconds_of(link, kind, sizes, ranks, itemsize)
    return bool((least_seconds(link, kind, sizes, ranks, itemsize) < own).all())


def _full(link: Link | Span, kind: str, sizes: np.ndarray, ranks: int, itemsize: int) -> np.ndarray:
    """The seconds of so many bytes at the rate of a full bucket."""
    return seconds_of(link, kind, np.array([float(BUCKET)]), ranks, itemsize) * sizes / BUCKET
