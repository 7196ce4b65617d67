"""`Matmul`: what a matrix product costs on a GPU, by its shape.

A kernel cuts the result into tiles, which the processors of the device work through in waves; the largest tiles are
the most efficient and the worst filled. With few tiles the inner dim is split among processors, and the parts are added
up. Beneath this is the time to read and write the matrices, and the launch. The library picks a kernel for each shape:
here the fastest of those listed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..documents import Field
from ..errors import UsageError
from ._links import SECONDS

# Into how many parts a kernel may split the inner dim, each of at least so many elements.
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SHORTEST = 128

STEP = 64  # elements of the inner dim that a tile processes at a time


class Tile(NamedTuple):
    """A tile of the result: the share of peak that a processor reaches in it, and seconds to begin and end one."""

    rows: int
    columns: int
    share: float
    startup: float


@dataclass(frozen=True)
class Matmul:
    """The law of one kind of device.

    `smooth` is how evenly the last wave is spread (0: whole waves only, 1: none is lost). Traffic reaches `memory` of
    the bandwidth, and `cached` times that while everything fits in `cache` bytes; `overlapped` of the shorter of
    traffic and arithmetic is hidden behind the longer. Splitting the inner dim costs `split` seconds and the parts,
    in float32, at `split_memory` of the bandwidth. Long kernels run at a lower clock: a time t is longer by the factor
    1 + throttle * log(1 + t / throttle_after). `dtypes` has the share of peak relative to that of the tiles.
    """

    processors: int
    tiles: tuple[Tile, ...]
    launch: float
    memory: float
    smooth: float = 0.0
    cache: float = 0.0
    cached: float = 1.0
    overlapped: float = 1.0
    split: float = 0.0
    split_memory: float = 1.0
    throttle: float = 0.0
    throttle_after: float = 1e-3
    dtypes: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tiles or self.processors < 1:
            raise UsageError("a law of matrix products needs at least one tile and one processor")

    def __hash__(self) -> int:
        return hash((self.processors, self.tiles, self.launch, self.memory, self.cache, self.throttle))

    def seconds(
        self,
        shape: tuple[float, float, float, float],
        *,
        peak: float,
        bandwidth: float,
        moved: float,
        dtype: str = "",
    ) -> float:
        """The time of a product of `shape` (batch, rows, columns and the inner dim) that moves so many bytes."""
        return _seconds(self, shape, peak * self.dtypes.get(dtype, 1.0), bandwidth, moved)

    def times(self, shapes: np.ndarray, peak: float, bandwidth: float, moved: np.ndarray) -> np.ndarray:
        """Seconds of the products of many shapes, one per row, and the bytes that each moves."""
        batch, rows, columns, inner = (size[:, None, None] for size in np.asarray(shapes, float).T)
        # Which side of a narrow product is the narrow one makes no difference.
        rows, columns = np.maximum(rows, columns), np.minimum(rows, columns)
        tall, wide, share, startup = (part[:, None] for part in np.array(self.tiles, float).T)
        parts = np.array(SPLITS, float)
        waves = batch * np.ceil(rows / tall) * np.ceil(columns / wide) * parts / self.processors
        waves = np.where(waves <= 1, 1.0, self.smooth * waves + (1 - self.smooth) * np.ceil(waves))
        steps = np.ceil(inner / parts / STEP) * STEP
        arithmetic = waves * (2 * tall * wide * steps * self.processors / (peak * share) + startup)
        arithmetic = arithmetic * (1 + self.throttle * np.log1p(arithmetic / self.throttle_after))
        moved = moved[:, None, None]
        missed = 1.0 if not self.cache else 1 - (1 - 1 / self.cached) / (1 + (moved / self.cache) ** 6)
        traffic = moved * missed / (bandwidth * self.memory)
        exposed = (1 - self.overlapped) * np.minimum(arithmetic, traffic)
        total = np.maximum(arithmetic, traffic) + exposed
        adding = self.split + parts * batch * rows * columns * 4 / (bandwidth * self.split_memory)
        total = total + np.where(parts > 1, adding, 0.0)
        total = np.where((parts > 1) & (inner / parts < SHORTEST), np.inf, total)
        return total.min((1, 2)) + self.launch


@cache
def _seconds(
    law: Matmul, shape: tuple[float, float, float, float], peak: float, bandwidth: float, moved: float
) -> float:
    return float(law.times(np.array([shape]), peak, bandwidth, np.array([moved], float))[0])


def read_matmul(document: Field, dtypes: tuple[str, ...]) -> Matmul:
    """The law in a field of a document."""
    shares = ("memory", "cached", "split_memory")
    seconds = ("launch", "split")
    parts = ("smooth", "overlapped")
    optional = ("cached", "split_memory", "split", *parts, "cache", "throttle", "throttle_after", "dtypes")
    fields = document.object(("processors", "tiles", "launch", "memory"), optional)
    given: dict[str, Any] = {}
    for names, limits in ((shares, (1e-3, 1e3)), (seconds, SECONDS), (parts, (0.0, 1.0))):
        given |= {name: fields[name].number(*limits) for name in names if name in fields}
    for name, limits in (("cache", (0.0, 1e15)), ("throttle", (0.0, 10.0)), ("throttle_after", (1e-9, 60.0))):
        if name in fields:
            given[name] = fields[name].number(*limits)
    if "dtypes" in fields:
        named = fields["dtypes"].object((), dtypes)
        given["dtypes"] = {name: share.number(1e-3, 10.0) for name, share in named.items()}
    tiles = []
    for tile in fields["tiles"].items():
        rows, columns, share, startup = tile.items(4)
        tiles.append(
            Tile(
                rows.integer(1, 10**6),
                columns.integer(1, 10**6),
                share.number(1e-3, 10.0),
                startup.number(*SECONDS),
            )
        )
    with document.checked():
        return Matmul(processors=fields["processors"].integer(1, 10**6), tiles=tuple(tiles), **given)
