"""What redistributions cost between the layouts of two items' choices, as tables.

The layouts that tensors of a size may have are noted first, so that the prices between all of them are worked out
together. `counts` say what a second of a collective counts along axes, if not one.
"""

from typing import Any

import numpy as np

from ..graph import TensorInfo
from ..mesh import Cluster
from ..redistribution import price_table
from ..solver import FORBIDDEN
from ._baselines import Moves
from ._choices import ABSENT, Layouts
from ._homes import pairs_of
from ._kinds import units
from ._weights import Counts


class MoveTables:
    """The tables of a graph on a mesh, for a step of so many passes. Equal ones are one object."""

    def __init__(self, layouts: Layouts, cluster: Cluster, passes: int) -> None:
        self.layouts, self.cluster, self.passes = layouts, cluster, passes
        self._tables: dict[Any, np.ndarray] = {}
        self._numbers: dict[Any, set[int]] = {}
        self._prices: dict[Any, tuple[dict[int, int], np.ndarray]] = {}

    def note(self, tensor: TensorInfo, face: np.ndarray) -> None:
        key = tensor.shape, tensor.dtype.itemsize
        self._numbers.setdefault(key, set()).update(np.unique(face[face != ABSENT]).tolist())

    def between(
        self,
        tensor: TensorInfo,
        source: np.ndarray,
        target: np.ndarray,
        moves: Moves | None,
        counts: Counts | None,
    ) -> np.ndarray:
        """The price of bringing a tensor from the layouts of one item's choices to those of another's."""
        key = tensor.shape, tensor.dtype.itemsize, id(source), id(target), moves, counts
        if key not in self._tables:
            index, prices = self._price(tensor, moves, counts)
            rows, columns = (np.array([index[n] for n in side.tolist()]) for side in (source, target))
            self._tables[key] = prices[np.ix_(rows, columns)]
        return self._tables[key]

    def all_of(
        self,
        tensor: TensorInfo,
        source: np.ndarray,
        targets: list[np.ndarray],
        moves: Moves | None,
        counts: Counts | None,
    ) -> np.ndarray:
        """The price for a user that takes a tensor several times: each layout is brought about once."""
        if len(targets) == 1:
            return self.between(tensor, source, targets[0], moves, counts)
        key = tensor.shape, tensor.dtype.itemsize, id(source), *map(id, targets), moves, counts
        if key not in self._tables:
            total = np.zeros((len(source), len(targets[0])), np.int64)
            for i, target in enumerate(targets):
                fresh = np.all([target != before for before in targets[:i]], axis=0)
                total += np.where(fresh, self.between(tensor, source, target, moves, counts), 0)
            self._tables[key] = np.minimum(total, FORBIDDEN)
        return self._tables[key]

    def kept_or_moved(
        self,
        tensor: TensorInfo,
        face: np.ndarray,
        kept: np.ndarray,
        into: np.ndarray,
        moves: Moves | None,
        counts: Counts | None,
    ) -> np.ndarray:
        key = tensor.shape, tensor.dtype.itemsize, id(face), id(kept), id(into), moves, counts
        if key not in self._tables:
            keep = np.where(face[:, None] == kept[None, :], 0, FORBIDDEN)
            moving = self.between(tensor, face, into, moves, counts)
            move = np.where(self.layouts.same(face, into), FORBIDDEN, moving)
            self._tables[key] = np.concatenate([keep, move], axis=1)
        return self._tables[key]

    def _price(
        self, tensor: TensorInfo, moves: Moves | None, counts: Counts | None
    ) -> tuple[dict[int, int], np.ndarray]:
        """The prices between all layouts that tensors of a size may have, and where each stands in them."""
        key = tensor.shape, tensor.dtype.itemsize, moves, counts
        if key not in self._prices:
            numbers = sorted(self._numbers[key[:2]])
            seconds = price_table(
                [self.layouts.all[n] for n in numbers],
                tensor.shape,
                dtype=tensor.dtype,
                cluster=self.cluster,
                weights=None if counts is None else counts.along,
                bucketed=counts is not None and counts.bucketed,
            )
            if moves is not None:
                layouts = [self.layouts.all[n] for n in numbers]
                allowed = [[moves.allowed(a, b, tensor.shape) for b in layouts] for a in layouts]
                seconds = np.where(allowed, seconds, np.inf)
            # Of equal plans that with fewer redistributions is preferred: each costs one unit more than its time.
            prices = np.minimum(units(seconds) + (seconds > 0), FORBIDDEN)
            # What is not there cannot be brought anywhere, and what is not used need not be.
            prices = np.pad(prices, (0, 1), constant_values=FORBIDDEN)
            prices[:, -1] = 0
            self._prices[key] = {n: i for i, n in enumerate([*numbers, ABSENT])}, prices
        return self._prices[key]

    def once(
        self,
        tensor: TensorInfo,
        homes: np.ndarray,
        others: np.ndarray,
        *,
        kept: int | None = None,
        on_host: np.ndarray | None = None,
    ) -> np.ndarray:
        """What it costs each pass that gradients are reduced once per step; or that a parameter is gathered, if so many
        of the `others` are homes that are `kept` as they are. There is no such home `on_host`."""
        gathered = kept is not None
        key = "once", tensor.shape, tensor.dtype.itemsize, id(homes), id(others), gathered
        if key not in self._tables:
            ends = (homes, others) if gathered else (others, homes)
            moving = self.between(tensor, *ends, None, None)
            moving = np.where(moving < FORBIDDEN, moving // self.passes, FORBIDDEN)
            allowed = pairs_of(self.layouts, homes, others, gathered=gathered)
            if kept is not None:
                same, host = homes[:, None] == others, np.zeros((len(homes), 1), bool)
                if on_host is not None:
                    host = on_host[:, None]
                as_is = np.arange(len(others)) < kept
                allowed = np.where(as_is, same & ~host, allowed & (~same | host))
            self._tables[key] = np.where(allowed, moving if gathered else moving.T, FORBIDDEN)
        return self._tables[key]
