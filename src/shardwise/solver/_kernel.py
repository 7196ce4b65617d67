"""The reduced problem in the form that the search uses: compact arrays of costs, neighbours, memory, capacities."""

from typing import NamedTuple

import numpy as np

from ._work import Work, items_of

BIG = 1e15
"""The cost of a forbidden pair in the search: far above any sum of costs, but small enough for exact sums."""


class Arrays(NamedTuple):
    """The input of compiled code.

    Half-edge `2e + side` is edge `e` from the side of `ends[e, side]`, with a table in which that node's choices are
    contiguous. Equal tables are stored once. Forbidden pairs cost `BIG`.
    """

    k: np.ndarray  # choices per node
    start: np.ndarray  # offset of a node's choices
    cost: np.ndarray
    ends: np.ndarray  # [edge, side] node
    table: np.ndarray  # offset per half-edge: row-major over (choice of the other node, choice of this one)
    tables: np.ndarray
    first: np.ndarray  # neighbours of node n: first[n] .. first[n + 1]
    half: np.ndarray  # half-edge (2 * edge + side of this node)
    near: np.ndarray  # neighbour
    item_first: np.ndarray  # memory items of node n
    item_lo: np.ndarray
    item_hi: np.ndarray
    item_offset: np.ndarray
    usage: np.ndarray  # int64
    capacity: np.ndarray  # int64, per point


class Kernel(NamedTuple):
    """Arrays, the corresponding nodes of the problem, the times of the points and the constant cost."""

    arrays: Arrays
    node: np.ndarray
    points: np.ndarray
    constant: float

    @property
    def nodes(self) -> int:
        return len(self.node)

    @property
    def edges(self) -> int:
        return len(self.arrays.ends)

    @classmethod
    def of(
        cls, w: Work, tables: np.ndarray, usages: np.ndarray, capacity: np.ndarray, points: np.ndarray
    ) -> "Kernel":
        node = np.flatnonzero(w.node["alive"])
        number = np.full(len(w.node), -1, np.int64)
        number[node] = np.arange(len(node))
        k = w.node["k"][node]
        start = np.concatenate([[0], np.cumsum(k)]).astype(np.int64)
        cost = np.empty(start[-1])
        for i, first in enumerate(w.node["start"][node]):
            cost[start[i] : start[i + 1]] = w.cost[first : first + k[i]]
        edge = np.flatnonzero(w.edge["alive"])
        ends = number[w.half["end"].reshape(-1, 2)[edge]]
        table, pool = _share(w.edge["offset"][edge], k[ends], tables)
        np.minimum(pool, BIG, out=pool)
        half = np.argsort(ends.reshape(-1), kind="stable")
        flat = ends.reshape(-1)
        items = items_of(w, usages, node)
        arrays = Arrays(
            k=k,
            start=start,
            cost=cost,
            ends=ends,
            table=table,
            tables=pool,
            first=np.searchsorted(flat[half], np.arange(len(node) + 1)).astype(np.int64),
            half=half,
            near=flat[half ^ 1],
            item_first=items[0],
            item_lo=items[1],
            item_hi=items[2],
            item_offset=items[3],
            usage=items[4],
            capacity=capacity.copy(),
        )
        return cls(arrays, node, points, float(w.cost[w.node["start"][~w.node["alive"]]].sum()))


def _share(offset: np.ndarray, sizes: np.ndarray, tables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets per half-edge into a pool in which equal tables are stored once."""
    known: dict[tuple[int, bytes], int] = {}
    pieces: list[np.ndarray] = []
    moved = np.empty(2 * len(offset), np.int64)
    used = 0
    for e, (o, (ka, kb)) in enumerate(zip(offset.tolist(), sizes.tolist(), strict=True)):
        piece = tables[o : o + ka * kb]
        for side, view in ((1, piece), (0, piece.reshape(ka, kb).T)):
            key = (view.shape[-1], view.tobytes())
            at = known.get(key)
            if at is None:
                at = known[key] = used
                pieces.append(view.reshape(-1))
                used += ka * kb
            moved[2 * e + side] = at
    return moved, np.concatenate(pieces) if pieces else np.empty(0)
