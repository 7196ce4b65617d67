"""`Space`: every layout of a tensor on a mesh, and the prices of redistributions between them.

The idea: which steps exist depends only on the mesh and the number of dims; sizes determine only their prices. So the
graph of steps is built once per mesh, and pricing a shape on a cluster is arithmetic on arrays.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
from torch.distributed.tensor.placement_types import Placement

from ..errors import UsageError
from ..layout import Layout, mixes_partials, piece_sizes
from ..mesh import COLLECTIVES, Cluster, Collective, Mesh
from ..placements import parse_placement, partial, shard
from ._bucket import least_seconds, seconds_of
from ._steps import Cut, States, all_steps


class Space:
    """The layouts of tensors with `ndim` dims on a mesh: plain shards, the given reductions and strided
    shards (axis, dim, split factor), in every nesting order. Axes of size 1 are always replicated.
    """

    def __init__(
        self,
        mesh: Mesh,
        ndim: int,
        reductions: Sequence[str] = (),
        strided: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self.mesh = mesh
        self.ndim = ndim
        self.placements: tuple[Placement, ...] = (
            parse_placement("R"),
            *(shard(dim) for dim in range(ndim)),
            *(partial(reduction) for reduction in reductions),
            *dict.fromkeys(shard(dim, factor) for _, dim, factor in strided),
        )
        plain = range(1 + ndim + len(reductions))
        choices = tuple(
            (*plain, *(self.placements.index(shard(dim, f)) for a, dim, f in strided if a == axis))
            if size > 1
            else (0,)
            for axis, size in enumerate(mesh.shape)
        )
        self._code = {placement: code for code, placement in enumerate(self.placements)}
        self.states = States.of(mesh.shape, self.placements, choices, ndim)
        self.steps = all_steps(self.states)
        # Steps are grouped by target state: the start of each group, and its state.
        self._starts = np.flatnonzero(np.diff(self.steps.target, prepend=-1))
        self._heads = self.steps.target[self._starts]

    def __len__(self) -> int:
        return len(self.states.all)

    # -- layouts

    def find(self, layout: Layout) -> int:
        """The index of a layout of this mesh."""
        index = self._index(layout)
        if index < 0:
            raise UsageError(
                f"layout '{layout}' is not a layout of a tensor with {self.ndim} dims on mesh {self.mesh}"
            )
        return index

    def _index(self, layout: Layout) -> int:
        """The index of a layout of this mesh; -1 if it is not in this space."""
        shape = self.mesh.shape
        codes = tuple(
            0 if shape[axis] == 1 else self._code.get(placement, -1)
            for axis, placement in enumerate(layout.placements)
        )
        return self.states.index.get(
            (codes, tuple(axis for axis in layout.order or () if shape[axis] > 1)), -1
        )

    def layout(self, index: int) -> Layout:
        codes, order = self.states.all[index]
        return Layout(self.mesh, tuple(self.placements[code] for code in codes), order)

    @lru_cache(maxsize=256)  # noqa: B019  (spaces are few and kept)
    def table(self, choices: tuple[tuple[Placement, ...], ...]) -> np.ndarray:
        """The index of the layout for every choice of one placement per axis, interpreted as DTensor does; -1 where
        there is no such layout. One array dim per axis.
        """
        indices = np.full([len(placements) for placements in choices], -1)
        for choice in product(*(range(len(placements)) for placements in choices)):
            chosen = tuple(placements[code] for placements, code in zip(choices, choice, strict=True))
            if not mixes_partials(chosen):
                indices[choice] = self._index(Layout(self.mesh, chosen))
        return indices

    # -- prices

    def held(self, shape: Sequence[int], itemsize: int) -> np.ndarray:
        """Bytes of the first rank's local tensor, which is the largest, in each layout."""
        total = np.full(len(self), float(itemsize))
        for dim, (nests, which) in enumerate(self._nests):
            sizes = [_first_piece(nest, shape[dim]) for nest in nests]
            total *= np.array(sizes, dtype=float)[which]
        return total

    def sizes(self, shape: Sequence[int], itemsize: int) -> np.ndarray:
        """Bytes of the larger side of every step, on the first rank; 0 for local steps."""
        held, steps = self.held(shape, itemsize), self.steps
        before = held[steps.source] * steps.of_source
        after = held[steps.target] * steps.of_target
        return steps.times * np.maximum(before, after)

    def costs(
        self, shape: Sequence[int], itemsize: int, cluster: Cluster, bucketed: bool = False
    ) -> np.ndarray:
        """The price of every step, in seconds; infinite where the sizes do not allow it. Of one that may be `bucketed`
        it is what the step adds at least to a bucket."""
        sizes = self.sizes(shape, itemsize)
        costs = np.zeros(len(sizes))
        for kind, axis, along in self._collectives:
            link, ranks = cluster.link(self.mesh, axis), self.mesh.shape[axis]
            times = least_seconds if bucketed else seconds_of
            taken = times(link, kind, sizes[along], ranks, itemsize)
            costs[along] = np.maximum(costs[along], taken)  # of several axes, the slowest
        for dim, shards in self._even_needs:
            if shape[dim] % shards:
                costs[(self.steps.even_dim == dim) & (self._even_shards == shards)] = np.inf
        return costs

    def from_source(self, source: int, costs: np.ndarray) -> np.ndarray:
        """The price of the cheapest chain of steps to every layout."""
        prices = np.full(len(self), np.inf)
        prices[source] = 0.0
        while len(costs):
            best = np.minimum.reduceat(prices[self.steps.source] + costs, self._starts)
            before = prices[self._heads]
            if not (best < before).any():
                break
            prices[self._heads] = np.minimum(best, before)
        return prices

    def chain(self, source: int, target: int, prices: np.ndarray, costs: np.ndarray) -> list[int]:
        """The steps of a cheapest chain, given the prices from its source: of several the shortest, and of those the
        first, so that the result is deterministic.
        """
        tight = np.flatnonzero(prices[self.steps.source] + costs == prices[self.steps.target])
        into: dict[int, list[int]] = {}
        for step in tight.tolist():
            into.setdefault(int(self.steps.target[step]), []).append(step)
        onward: dict[int, int] = {}  # the step to take from each layout that leads to the target
        reached = [target]
        while reached and source not in onward and source != target:
            following = []
            for state in reached:
                for step in into.get(state, ()):
                    before = int(self.steps.source[step])
                    if before not in onward and before != target:
                        onward[before] = step
                        following.append(before)
            reached = following
        steps = []
        while source != target:
            steps.append(onward[source])
            source = int(self.steps.target[onward[source]])
        return steps

    def from_sources(self, sources: Sequence[int], costs: np.ndarray) -> np.ndarray:
        """Prices from each of several layouts to every layout, one row each."""
        prices = np.full((len(sources), len(self)), np.inf)
        prices[np.arange(len(sources)), list(sources)] = 0.0
        rows = max(1, 4_000_000 // max(1, len(costs)))
        for start in range(0, len(sources), rows):
            part = prices[start : start + rows]
            while len(costs):
                best = np.minimum.reduceat(part[:, self.steps.source] + costs, self._starts, axis=1)
                before = part[:, self._heads]
                if not (best < before).any():
                    break
                part[:, self._heads] = np.minimum(best, before)
        return prices

    def cheapest(self, sources: Sequence[int], costs: np.ndarray) -> "Cheapest":
        """All cheapest chains from each of several layouts."""
        prices, steps = self.from_sources(sources, costs), self.steps
        found = []
        for row, own in enumerate(prices):
            prices_of = own[steps.target]
            enough = np.where(np.isfinite(prices_of), prices_of * (1 + _EQUAL), -1.0)
            tight = np.flatnonzero(own[steps.source] + costs <= enough)
            before, after = (side[tight] + row * len(self) for side in (steps.source, steps.target))
            found.append(np.stack([tight, before, after]))
        tight, before, after = np.concatenate(found, axis=1)
        order = np.argsort(after, kind="stable")
        reached, starts = np.unique(after[order], return_index=True)
        return Cheapest(prices, tuple(sources), tight[order], before[order], reached, starts)

    @cached_property
    def _collectives(self) -> list[tuple[Collective, int, np.ndarray]]:
        """The steps of each collective along each axis."""
        steps = self.steps
        found = [
            (name, axis, np.flatnonzero((steps.kind == kind) & (steps.axes & (1 << axis) > 0)))
            for kind, name in enumerate(COLLECTIVES)
            for axis in range(self.mesh.ndim)
        ]
        return [(name, axis, along) for name, axis, along in found if len(along)]

    # -- sizes

    @cached_property
    def _nests(self) -> list[tuple[list[tuple[Cut, ...]], np.ndarray]]:
        """For each dim the distinct sequences of splits, and the index of each layout's."""
        by_dim = []
        for dim in range(self.ndim):
            seen: dict[tuple[Cut, ...], int] = {}
            which = [seen.setdefault(self.states.cuts(state, dim), len(seen)) for state in self.states.all]
            by_dim.append((list(seen), np.array(which)))
        return by_dim

    @cached_property
    def _even_shards(self) -> np.ndarray:
        """For steps with an `even_dim`, the number of shards of that dim."""
        shards = np.ones(len(self.steps.kind), dtype=np.int64)
        for step in np.flatnonzero(self.steps.even_dim >= 0):
            source = self.states.all[self.steps.source[step]]
            cuts = self.states.cuts(source, int(self.steps.even_dim[step]))
            shards[step] = math.prod(ranks for _, ranks in cuts)
        return shards

    @cached_property
    def _even_needs(self) -> set[tuple[int, int]]:
        needs = self.steps.even_dim >= 0
        pairs = zip(self.steps.even_dim[needs].tolist(), self._even_shards[needs].tolist(), strict=True)
        return set(pairs)


@dataclass(frozen=True, eq=False)
class Cheapest:
    """The prices from some layouts (rows) to all (columns), and the steps of all chains with these prices.

    A step leads from `before` to one of `reached`, places in the flat array of prices; those that lead to the i-th
    begin at `starts[i]`.
    """

    prices: np.ndarray
    sources: tuple[int, ...]
    steps: np.ndarray
    before: np.ndarray
    reached: np.ndarray
    starts: np.ndarray

    def least(self, counts: np.ndarray) -> np.ndarray:
        """What these chains count at least, if each step counts so much."""
        least = np.full_like(self.prices, np.inf)
        least[np.arange(len(self.sources)), list(self.sources)] = 0.0
        flat, counted = least.reshape(-1), counts[self.steps]
        while len(self.steps):
            best = np.minimum.reduceat(flat[self.before] + counted, self.starts)
            before = flat[self.reached]
            if not (best < before).any():
                break
            flat[self.reached] = np.minimum(best, before)
        return least


# By how much prices may differ that are sums of the same seconds.
_EQUAL = 1e-12


def _first_piece(cuts: Sequence[Cut], size: int) -> int:
    for factor, ranks in cuts:
        size = piece_sizes(size, factor, ranks)[0]
    return size


@lru_cache(maxsize=128)
def space(
    mesh: Mesh,
    ndim: int,
    reductions: frozenset[str] = frozenset(),
    strided: frozenset[tuple[int, int, int]] = frozenset(),
) -> Space:
    """The space of a mesh, cached."""
    return Space(mesh, ndim, sorted(reductions), sorted(strided))
