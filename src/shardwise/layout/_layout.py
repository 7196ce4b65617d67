"""`Layout`: how one tensor is distributed over an N-D mesh.

A layout has one placement per axis. Where several axes shard one dim, their nesting order matters too: `order`
stores it, outermost first. DTensor encodes the order in the split factors of strided shards; a layout decodes and
encodes them, so that inside Shardwise equal layouts are equal values.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement

from ..errors import UsageError, require
from ..mesh import Mesh
from ..placements import (
    is_partial,
    is_replicate,
    is_shard,
    join,
    not_known,
    parse_placement,
    placement_text,
    shard,
    shard_sizes,
)
from ._runs import Run, between, length

if TYPE_CHECKING:
    from ._sharding import Sharding

_NESTED = re.compile(r"\s*(.*?)\s*\[\s*(\d+)\s*\]\s*")

# What all ranks but the first hold when a replicated value becomes partial; other reductions use copies.
IDENTITY = {"sum": 0, "product": 1}


@dataclass(frozen=True)
class Layout:
    """One placement per mesh axis, and the nesting order of the axes.

    `order` lists the sharding axes dim by dim, outermost first; by default axes are nested from left to right, and
    split factors of strided shards that encode another order are decoded to it.

    >>> mesh = Mesh.parse("dp=2,tp=4")
    >>> inner = Layout.parse("S(0), S(0)", mesh)
    >>> outer = Layout.parse("S(0)[1], S(0)[0]", mesh)
    >>> inner.dims(2), outer.dims(2)
    ((('dp', 'tp'), ()), (('tp', 'dp'), ()))
    >>> outer.to_placements()
    (_StridedShard(dim=0, sf=4), Shard(dim=0))
    >>> inner.local_shape((16, 3), rank=1), inner.offset((16, 3), rank=1), outer.offset((16, 3), rank=1)
    ((2, 3), (2, 0), (4, 0))
    """

    mesh: Mesh
    placements: tuple[Placement, ...]
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        placements = tuple(self.placements)
        if len(placements) != self.mesh.ndim:
            raise UsageError(
                f"mesh {self.mesh} has {self.mesh.ndim} axes but {len(placements)} placements were given: "
                f"give one per axis, R where the tensor is replicated"
            )
        for placement in placements:
            if is_shard(placement) and placement.dim < 0:
                raise UsageError(f"{placement!r} has a negative dim: count dims from 0")
            if not (is_replicate(placement) or is_shard(placement) or is_partial(placement)):
                raise not_known(placement)
        if mixes_partials(placements):
            kinds = ", ".join(placement_text(p) for p in placements if is_partial(p))
            raise UsageError(f"a layout cannot mix {kinds}: only P(sum) and P(avg) can be combined")
        if self.order is None:
            placements, order = _read_split_factors(placements, self.mesh.shape)
        else:
            order = _canonical_order(placements, tuple(self.order))
        placements = tuple(shard(p.dim) if _factor(p) == 1 else p for p in placements)
        object.__setattr__(self, "placements", placements)
        object.__setattr__(self, "order", order)

    # -- construction

    @classmethod
    def replicated(cls, mesh: Mesh) -> "Layout":
        return cls(mesh, (parse_placement("R"),) * mesh.ndim)

    @classmethod
    def of(cls, placements: "Layout | Sharding | str | Sequence[Placement]", mesh: Mesh) -> "Layout":
        """A layout as users give it: itself, a sharding, the text of either, or one placement per axis of the mesh."""
        from ._sharding import Sharding

        known = (Layout, Sharding, str, Sequence)
        require(placements, known, "placements", "a layout such as 'S(0), R' or '[{dp}, {}]'")
        if isinstance(placements, Sharding):
            return _of_sharding(placements, mesh)
        if isinstance(placements, Layout):
            return placements
        if isinstance(placements, str):
            return cls.parse(placements, mesh)
        return cls(mesh, tuple(placements))

    @classmethod
    def parse(cls, text: str, mesh: Mesh | str) -> "Layout":
        """From `S(0), R`; `S(0)[1], S(0)[0]` gives the nesting order of two axes on one dim, 0 outermost. The text of a
        sharding, `[{tp, dp}, {}]`, says the same by dims."""
        mesh = Mesh.of(mesh)
        if text.strip().startswith("["):
            from ._sharding import Sharding

            return _of_sharding(Sharding.parse(text, mesh), mesh)
        parts = re.split(r",(?![^(]*\))", text)
        nested = [_NESTED.fullmatch(part) for part in parts]
        placements = tuple(parse_placement(n[1] if n else p) for n, p in zip(nested, parts, strict=True))
        if not any(nested):
            return cls(mesh, placements)
        rank = [int(n[2]) if n else 0 for n in nested]
        axes = [a for a, p in enumerate(placements) if is_shard(p)]
        return cls(mesh, placements, tuple(sorted(axes, key=lambda a: (placements[a].dim, rank[a], a))))

    @classmethod
    def from_dims(
        cls, mesh: Mesh, dims: Sequence[Sequence[str]], partials: Mapping[str, Placement] | None = None
    ) -> "Layout":
        """From the axes that shard each dim, outermost first.

        >>> str(Layout.from_dims(Mesh.parse("dp=2,tp=4"), [("tp", "dp"), ()]))
        'S(0)[1], S(0)[0]'
        """
        placements: list[Placement | None] = [None] * mesh.ndim
        order = []
        for dim, axes in enumerate(dims):
            for name in axes:
                axis = mesh.index(name)
                if placements[axis] is not None:
                    raise UsageError(f"mesh axis {name!r} is used twice: an axis can shard one dim only")
                placements[axis] = shard(dim)
                order.append(axis)
        for name, placement in (partials or {}).items():
            axis = mesh.index(name)
            if placements[axis] is not None:
                raise UsageError(f"mesh axis {name!r} cannot both shard a dim and be partial")
            placements[axis] = placement
        replicate = parse_placement("R")
        return cls(mesh, tuple(replicate if p is None else p for p in placements), tuple(order))

    # -- properties

    def __str__(self) -> str:
        texts = []
        for axis, placement in enumerate(self.placements):
            text = placement_text(placement)
            if is_shard(placement):
                axes = self.axes(placement.dim)
                if axes != tuple(sorted(axes)):
                    text += f"[{axes.index(axis)}]"
            texts.append(text)
        return ", ".join(texts)

    def __repr__(self) -> str:
        return f"Layout.parse({str(self)!r}, {str(self.mesh)!r})"

    def axes(self, dim: int) -> tuple[int, ...]:
        """The axes that shard `dim`, outermost first."""
        assert self.order is not None
        return tuple(axis for axis in self.order if self.placements[axis].dim == dim)

    def dims(self, ndim: int) -> tuple[tuple[str, ...], ...]:
        """For each of `ndim` dims the names of the axes that shard it, outermost first."""
        return tuple(tuple(self.mesh.names[a] for a in self.axes(dim)) for dim in range(ndim))

    def to_placements(self) -> tuple[Placement, ...]:
        """DTensor's placements: nesting orders other than left to right become strided shards."""
        placements = list(self.placements)
        for dim in self.sharded_dims:
            axes = self.axes(dim)
            for position, axis in enumerate(axes):
                later = [self.mesh.shape[a] for a in axes[:position] if a > axis]
                if later and _factor(placements[axis]) is None:
                    placements[axis] = shard(dim, math.prod(later))
        return tuple(shard(p.dim) if _factor(p) == 1 else p for p in placements)

    @property
    def sharded_dims(self) -> tuple[int, ...]:
        return tuple(sorted({p.dim for p in self.placements if is_shard(p)}))

    @property
    def reductions(self) -> frozenset[str]:
        """The pending reductions."""
        return frozenset(p.reduce_op for p in self.placements if is_partial(p))

    @property
    def is_replicated(self) -> bool:
        return all(is_replicate(p) for p in self.placements)

    # -- sizes

    def shards(self, dim: int) -> int:
        """The number of shards of `dim`."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes(dim))

    def divides(self, shape: Sequence[int]) -> bool:
        """True if all shards of every dim have the same size."""
        self.require_fits(shape)
        return all(self.divides_dim(dim, shape[dim]) for dim in self.sharded_dims)

    def divides_dim(self, dim: int, size: int) -> bool:
        """True if all shards of a dim of this size have the same size."""
        return cuts_evenly(self._cuts(dim), size)

    def fills_dim(self, dim: int, size: int) -> bool:
        """True if no shard of a dim of this size is empty."""
        return smallest_piece(self._cuts(dim), size) > 0

    def runs(self, dim: int, size: int, rank: int) -> list[Run]:
        """The positions of a dim of `size` that the rank holds: ascending ranges (start, stop), none empty."""
        coordinate = self.mesh.coordinate(rank)
        held = [(0, size)] if size else []
        for axis in self.axes(dim):
            held = _cut(held, _factor(self.placements[axis]), self.mesh.shape[axis], coordinate[axis])
        return held

    def positions(self, dim: int, size: int, rank: int) -> np.ndarray:
        """The positions of a dim of `size` that the rank holds."""
        return np.concatenate([np.arange(0), *(np.arange(*run) for run in self.runs(dim, size, rank))])

    def local_shape(self, shape: Sequence[int], rank: int = 0) -> tuple[int, ...]:
        """The shape of the local tensor of `rank`. That of rank 0 is the largest in every dim."""
        self.require_fits(shape)
        local = list(shape)
        coordinate = self.mesh.coordinate(rank)
        for axis in self.order or ():
            placement = self.placements[axis]
            sizes = piece_sizes(local[placement.dim], _factor(placement), self.mesh.shape[axis])
            local[placement.dim] = sizes[coordinate[axis]]
        return tuple(local)

    def offset(self, shape: Sequence[int], rank: int = 0) -> tuple[int, ...]:
        """The position of the first element of the rank's shard; the size of the dim where the shard is empty.

        A strided shard is not one range: see `positions`.
        """
        self.require_fits(shape)
        found = [0] * len(shape)
        for dim in self.sharded_dims:
            runs = self.runs(dim, shape[dim], rank)
            found[dim] = runs[0][0] if runs else shape[dim]
        return tuple(found)

    # -- local tensors

    def split(self, tensor: Tensor) -> list[Tensor]:
        """The local tensor of each rank."""
        return [self.piece(tensor, rank) for rank in range(self.mesh.ranks)]

    def piece(self, tensor: Tensor, rank: int) -> Tensor:
        """The local tensor of one rank. A partial is split as DTensor converts a replicated tensor to a partial: the
        whole value on the first rank of the axis for sum and product, copies otherwise.
        """
        self.require_fits(tensor.shape)
        for dim in self.sharded_dims:
            runs = self.runs(dim, tensor.shape[dim], rank) or [(0, 0)]
            parts = [tensor.narrow(dim, start, stop - start) for start, stop in runs]
            tensor = parts[0] if len(parts) == 1 else torch.cat(parts, dim)
        coordinate = self.mesh.coordinate(rank)
        for axis, placement in enumerate(self.placements):
            if is_partial(placement) and coordinate[axis] > 0 and placement.reduce_op in IDENTITY:
                return torch.full_like(tensor, IDENTITY[placement.reduce_op])
        return tensor

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """The global tensor of these local tensors, partials reduced: `layout.join(layout.split(x))` is x."""
        if len(pieces) != self.mesh.ranks:
            raise UsageError(
                f"{len(pieces)} local tensors were given but mesh {self.mesh} has {self.mesh.ranks} ranks"
            )
        grid: dict[tuple[int, ...], Tensor] = {self.mesh.coordinate(r): p for r, p in enumerate(pieces)}
        assert self.order is not None
        partial_axes = [a for a, p in enumerate(self.placements) if is_partial(p)]
        replicated = [a for a, p in enumerate(self.placements) if is_replicate(p)]
        for axis in (*partial_axes, *replicated, *reversed(self.order)):
            grid = self._join_axis(grid, axis)
        return grid[(0,) * self.mesh.ndim]

    def _join_axis(self, grid: dict[tuple[int, ...], Tensor], axis: int) -> dict[tuple[int, ...], Tensor]:
        joined = {}
        for coordinate in grid:
            if coordinate[axis] == 0:
                line = [
                    (*coordinate[:axis], i, *coordinate[axis + 1 :]) for i in range(self.mesh.shape[axis])
                ]
                joined[coordinate] = join([grid[c] for c in line], self.placements[axis])
        return joined

    def _cuts(self, dim: int) -> tuple[tuple[int | None, int], ...]:
        return tuple((_factor(self.placements[a]), self.mesh.shape[a]) for a in self.axes(dim))

    def require_fits(self, shape: Sequence[int]) -> None:
        """Refuse a shape without a dim that is sharded."""
        for dim in self.sharded_dims:
            if dim >= len(shape):
                raise UsageError(
                    f"layout '{self}' shards dim {dim}, "
                    f"but the tensor of shape {tuple(shape)} has {len(shape)} dims"
                )


def mixes_partials(placements: Iterable[Placement]) -> bool:
    """True if the placements mix reductions that do not commute: any two except sum and avg."""
    reductions = {p.reduce_op for p in placements if is_partial(p)}
    return len(reductions) > 1 and reductions != {"sum", "avg"}


# -- splits of a dim: (split factor or None, ranks), outermost first


@cache
def piece_sizes(size: int, factor: int | None, ranks: int) -> tuple[int, ...]:
    """The sizes of the shards of one split, as DTensor computes them."""
    if factor is None:
        return tuple(shard_sizes(size, ranks))
    blocks = piece_sizes(size, None, factor)
    parts = [piece_sizes(block, None, ranks) for block in blocks]
    return tuple(sum(part[rank] for part in parts) for rank in range(ranks))


def cuts_evenly(cuts: Sequence[tuple[int | None, int]], size: int) -> bool:
    for factor, ranks in cuts:
        if size % ((factor or 1) * ranks):
            return False
        size //= ranks
    return True


def smallest_piece(cuts: Sequence[tuple[int | None, int]], size: int) -> int:
    sizes = {size}
    for factor, ranks in cuts:
        sizes = {piece for s in sizes for piece in piece_sizes(s, factor, ranks)}
    return min(sizes)


def _cut(held: list[Run], factor: int | None, ranks: int, rank: int) -> list[Run]:
    """The part of these positions that one rank gets, each block split separately."""
    part: list[Run] = []
    start = 0
    for block in piece_sizes(length(held), None, factor or 1):
        sizes = piece_sizes(block, None, ranks)
        before = start + sum(sizes[:rank])
        part.extend(between(held, before, before + sizes[rank]))
        start += block
    return part


def _factor(placement: Placement) -> int | None:
    return getattr(placement, "split_factor", None)


# -- order


def _canonical_order(placements: tuple[Placement, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    sharding = [a for a, p in enumerate(placements) if is_shard(p)]
    if sorted(order) != sharding:
        raise UsageError(
            f"order {order} does not contain each sharding axis once: they are {tuple(sharding)}"
        )
    return tuple(sorted(order, key=lambda axis: placements[axis].dim))


def _of_sharding(sharding: "Sharding", mesh: Mesh) -> Layout:
    layout = sharding.to_layout()
    if layout.mesh != mesh:
        raise UsageError(
            f"sharding {sharding} is one on mesh {layout.mesh}, with parts of axes as axes of their own: give that "
            f"mesh instead of {mesh}"
        )
    return layout


def _read_split_factors(
    placements: tuple[Placement, ...], shape: tuple[int, ...]
) -> tuple[tuple[Placement, ...], tuple[int, ...]]:
    """Split factors that encode an order are decoded to it; others stay, nested from left to right."""
    placements = tuple(shard(p.dim) if _factor(p) == 1 else p for p in placements)
    order: list[int] = []
    read = list(placements)
    for dim in sorted({p.dim for p in placements if is_shard(p)}):
        axes = [a for a, p in enumerate(placements) if is_shard(p) and p.dim == dim]
        nested = _nesting(axes, [_factor(placements[a]) or 1 for a in axes], shape)
        order.extend(axes if nested is None else nested)
        if nested is not None:
            for axis in axes:
                read[axis] = shard(dim)
    return tuple(read), tuple(order)


def _nesting(axes: Sequence[int], factors: Sequence[int], shape: Sequence[int]) -> list[int] | None:
    """The nesting order in which the split factor of each axis is the number of shards made by later axes, if any."""
    nested: list[int] = []
    for axis, factor in reversed(list(zip(axes, factors, strict=True))):
        cumulative = [math.prod(shape[a] for a in nested[:position]) for position in range(len(nested) + 1)]
        if factor not in cumulative:
            return None
        nested.insert(cumulative.index(factor), axis)
    return nested
