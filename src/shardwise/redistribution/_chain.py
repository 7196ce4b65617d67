"""From one layout to another: the cheapest chain of steps that DTensor's collectives can run, and its price.

A step changes one axis by one collective, or moves whole shards between ranks by one permute. The price of a
redistribution is the length of a shortest path over such steps, so prices satisfy the triangle inequality.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np
import torch
from torch.distributed.tensor.placement_types import Placement

from ..errors import UsageError
from ..layout import Layout
from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
from ..placements import is_partial, is_shard
from ._space import Cheapest, Space, space
from ._steps import KINDS


@dataclass(frozen=True)
class Step:
    """One collective, or a free local step.

    `axes` are the mesh axes it runs along; `size` the bytes of its larger side on the first rank, which has the
    largest shard: the output of an all-gather, the input of a reduce-scatter, all-reduce or permute, the larger of
    both for an all-to-all.
    """

    kind: str
    axes: tuple[int, ...]
    before: Layout
    after: Layout
    size: int
    seconds: float

    @property
    def is_local(self) -> bool:
        return self.kind in ("slice", "to_partial")

    def __str__(self) -> str:
        text = f"{self.kind}: {self.before} -> {self.after}"
        if self.is_local:
            return text
        names = ", ".join(self.before.mesh.names[axis] for axis in self.axes)
        return f"{text} over {names} ({self.size} bytes, {self.seconds * 1e6:.1f} us)"

    def __repr__(self) -> str:
        return f"<Step {self}>"


@dataclass(frozen=True)
class Chain:
    """A redistribution as a chain of steps. An empty chain means that the layouts are physically equal."""

    source: Layout
    target: Layout
    steps: tuple[Step, ...]
    price: float

    @cached_property
    def collectives(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if not step.is_local)

    def __str__(self) -> str:
        return "\n".join(str(step) for step in self.steps) or "nothing to do"

    def __repr__(self) -> str:
        kinds = ", ".join(step.kind for step in self.steps) or "nothing to do"
        return f"<Chain {self.source} -> {self.target}: {kinds}, {self.price * 1e6:.1f} us>"


def cheapest_chain(
    source: Layout,
    target: Layout,
    shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    cluster: Cluster | str = DEFAULT_CLUSTER,
) -> Chain:
    """The cheapest chain of steps from one layout to another on the same mesh.

    >>> mesh = "dp=2,tp=4"
    >>> moved = cheapest_chain(Layout.parse("S(0), R", mesh), Layout.parse("S(0), S(0)", mesh), (16, 16))
    >>> print(moved, moved.price)
    slice: S(0), R -> S(0), S(0) 0.0
    """
    prices = Prices(cluster)
    return prices.chain(source, target, tuple(shape), dtype.itemsize)


def price(
    source: Layout,
    target: Layout,
    shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    cluster: Cluster | str = DEFAULT_CLUSTER,
) -> float:
    """The price, in seconds, of the cheapest chain from one layout to another."""
    _require(source, target, shape)
    return Prices(cluster).to_all(source, [target], tuple(shape), dtype.itemsize)[0]


def price_table(
    layouts: Sequence[Layout],
    shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    cluster: Cluster | str = DEFAULT_CLUSTER,
    weights: tuple[float, ...] | None = None,
    bucketed: bool = False,
) -> np.ndarray:
    """The prices, in seconds, from each layout (row) to each other (column); cached.

    With `weights`, what the cheapest chains count at least if each second counts so many, by the mask of the axes that
    a step runs along; `bucketed` is for tensors whose small collectives may run in buckets: then what they add to those
    at least counts.
    """
    if not layouts:
        return np.zeros((0, 0))
    for layout in layouts:
        _require(layouts[0], layout, shape)
    return _price_table(tuple(layouts), tuple(shape), dtype.itemsize, Cluster.of(cluster), weights, bucketed)


@lru_cache(maxsize=512)
def _price_table(
    layouts: tuple[Layout, ...],
    shape: tuple[int, ...],
    itemsize: int,
    cluster: Cluster,
    weights: tuple[float, ...] | None,
    bucketed: bool,
) -> np.ndarray:
    where, cheapest, rows, columns = _cheapest(layouts, shape, itemsize, cluster)
    prices = cheapest.prices
    if weights is not None:
        seconds = where.costs(shape, itemsize, cluster, bucketed)
        possible = np.where(np.isfinite(seconds), seconds, 0.0)  # the chains have no others
        prices = cheapest.least(possible * np.array(weights)[where.steps.axes])
    table = prices[np.ix_(rows, columns)]
    table.flags.writeable = False  # it is cached
    return table


@lru_cache(maxsize=512)
def _cheapest(
    layouts: tuple[Layout, ...], shape: tuple[int, ...], itemsize: int, cluster: Cluster
) -> tuple[Space, Cheapest, np.ndarray, np.ndarray]:
    """The cheapest chains between layouts, with the row and the column of each layout."""
    where = space_of(layouts[0].mesh, _placements(layouts), len(shape))
    indices = np.array([where.find(layout) for layout in layouts])
    unique, rows = np.unique(indices, return_inverse=True)
    return where, where.cheapest(unique.tolist(), where.costs(shape, itemsize, cluster)), rows, indices


class Prices:
    """The prices on one cluster, in the form that `shardwise.expansion` needs."""

    def __init__(self, cluster: Cluster | str = DEFAULT_CLUSTER) -> None:
        self.cluster = Cluster.of(cluster)

    def from_source(self, where: Space, source: int, shape: tuple[int, ...], itemsize: int) -> np.ndarray:
        """Seconds from one layout to each layout of its space."""
        return _from_source(where, source, shape, itemsize, self.cluster)

    def to_all(
        self, source: Layout, targets: Sequence[Layout], shape: tuple[int, ...], itemsize: int
    ) -> list[float]:
        where = space_of(source.mesh, _placements([source, *targets]), len(shape))
        prices = self.from_source(where, where.find(source), shape, itemsize)
        return [float(prices[where.find(target)]) for target in targets]

    def chain(self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> Chain:
        _require(source, target, shape)
        return _chain(source, target, shape, itemsize, self.cluster)


@lru_cache(maxsize=4096)
def _chain(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, cluster: Cluster) -> Chain:
    where = space_of(source.mesh, _placements([source, target]), len(shape))
    start, end = where.find(source), where.find(target)
    prices = _from_source(where, start, shape, itemsize, cluster)
    sizes = where.sizes(shape, itemsize)
    costs = where.costs(shape, itemsize, cluster)
    steps = []
    for step in where.chain(start, end, prices, costs):
        mask = int(where.steps.axes[step])
        steps.append(
            Step(
                KINDS[where.steps.kind[step]],
                tuple(axis for axis in range(source.mesh.ndim) if mask >> axis & 1),
                where.layout(int(where.steps.source[step])),
                where.layout(int(where.steps.target[step])),
                int(sizes[step]),
                float(costs[step]),
            )
        )
    return Chain(source, target, tuple(steps), float(prices[end]))


@lru_cache(maxsize=1024)
def _from_source(
    where: Space, source: int, shape: tuple[int, ...], itemsize: int, cluster: Cluster
) -> np.ndarray:
    return where.from_source(source, where.costs(shape, itemsize, cluster))


def space_of(mesh: Mesh, placements: Iterable[tuple[int, Placement]], ndim: int) -> Space:
    """The smallest space whose layouts can have each of these placements on its axis.

    Intermediate layouts need no other reductions and strided shards: plain shards cost no more.
    """
    reductions, strided = set(), set()
    for axis, placement in placements:
        if is_partial(placement):
            reductions.add(placement.reduce_op)
        elif is_shard(placement) and hasattr(placement, "split_factor") and placement.dim < ndim:
            strided.add((axis, placement.dim, placement.split_factor))
    return space(mesh, ndim, frozenset(reductions), frozenset(strided))


def _placements(layouts: Iterable[Layout]) -> Iterator[tuple[int, Placement]]:
    return chain.from_iterable(enumerate(layout.placements) for layout in layouts)


def _require(source: Layout, target: Layout, shape: Sequence[int]) -> None:
    if source.mesh != target.mesh:
        raise UsageError(
            f"the source layout is on mesh {source.mesh} and the target layout on {target.mesh}: "
            f"both must be on the same mesh"
        )
    for layout in (source, target):
        layout.require_fits(shape)
