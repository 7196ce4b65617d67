"""`Sharding`: how the axes of a mesh split one tensor, seen from the tensor.

For each dim an ordered list of axes (or sub-axes), major to minor. A dim may be open: propagation may
append axes to it, never remove or reorder them. Axes that are named nowhere replicate the tensor.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ..errors import UsageError
from ..mesh import Mesh
from ..placements import PARTIALS
from ._axes import AxisRef

_DIM = re.compile(r"\{([^{}]*)\}\s*(?:p\s*(\d+))?")
_GROUP = re.compile(r"\s*(\w+)\s*=\s*\{([^{}]*)\}\s*,?")
_AXES = str | Sequence[str] | None


@dataclass(frozen=True)
class DimSharding:
    """One dim: its axes, major to minor, whether more may follow, and when they are propagated (0 first)."""

    axes: tuple[AxisRef, ...] = ()
    open: bool = True
    priority: int | None = None


@dataclass(frozen=True)
class Sharding:
    """The sharding of one tensor over a mesh of named axes.

    >>> mesh = Mesh.parse("dp=2,tp=4")
    >>> sharding = Sharding.parse("[{dp}, {tp:(1)2, ?}p1]", mesh)
    >>> str(sharding), sharding.shards(1)
    ('[{dp}, {tp:(1)2, ?}p1]', 2)
    """

    mesh: Mesh
    dims: tuple[DimSharding, ...]
    replicated: tuple[AxisRef, ...] = ()
    partial: tuple[tuple[AxisRef, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "replicated", _in_mesh_order(self.replicated, self.mesh))
        self._require_axes_of_mesh()
        self._require_no_overlap()
        self._require_whole_axes()
        for dim, spec in enumerate(self.dims):
            if spec.priority is not None and spec.priority < 0:
                raise UsageError(f"priority {spec.priority} of dim {dim} is negative: 0 is propagated first")
        for axis, reduction in self.partial:
            if reduction not in PARTIALS:
                raise UsageError(
                    f"partial axis {axis.text(self.mesh)} has the unknown reduction {reduction!r}: "
                    f"use one of {', '.join(PARTIALS)}"
                )

    @classmethod
    def of(
        cls,
        mesh: Mesh | str,
        dims: Sequence[_AXES],
        *,
        open: bool | Sequence[bool] = False,
        priority: Sequence[int | None] | None = None,
        replicated: Iterable[str] = (),
        partial: dict[str, str] | None = None,
    ) -> "Sharding":
        """A sharding from axis names: `Sharding.of("dp=2,tp=4", ["dp", None, ("tp",)])`."""
        mesh = Mesh.of(mesh)
        if not isinstance(open, bool) and len(open) != len(dims):
            raise UsageError(f"the sharding has {len(dims)} dims but 'open' has {len(open)} entries")
        if priority is not None and len(priority) != len(dims):
            raise UsageError(f"the sharding has {len(dims)} dims but 'priority' has {len(priority)} entries")
        specs = []
        for dim, axes in enumerate(dims):
            names = [axes] if isinstance(axes, str) else list(axes or ())
            specs.append(
                DimSharding(
                    tuple(AxisRef.parse(name, mesh) for name in names),
                    open if isinstance(open, bool) else open[dim],
                    None if priority is None else priority[dim],
                )
            )
        return cls(
            mesh,
            tuple(specs),
            tuple(AxisRef.parse(name, mesh) for name in replicated),
            tuple((AxisRef.parse(name, mesh), reduction) for name, reduction in (partial or {}).items()),
        )

    @classmethod
    def unknown(cls, mesh: Mesh | str, rank: int) -> "Sharding":
        """Nothing known: every dim open and empty."""
        return cls(Mesh.of(mesh), (DimSharding(),) * rank)

    @classmethod
    def parse(cls, text: str, mesh: Mesh | str) -> "Sharding":
        """The sharding that `text` names: `[{dp}, {tp:(1)2, ?}p1] replicated={pp} partial={ep:sum}`."""
        mesh = Mesh.of(mesh)
        body = re.match(r"\s*\[(.*?)\]\s*,?", text, re.DOTALL)
        if body is None:
            raise _not_a_sharding(text)
        dims, position = [], 0
        while body[1][position:].strip():
            match = re.compile(r"\s*" + _DIM.pattern + r"\s*(,|$)").match(body[1], position)
            if match is None:
                raise _not_a_sharding(text)
            names = [part.strip() for part in match[1].split(",")] if match[1].strip() else []
            is_open = bool(names) and names[-1] == "?"
            axes = tuple(AxisRef.parse(name, mesh) for name in (names[:-1] if is_open else names))
            dims.append(DimSharding(axes, is_open, None if match[2] is None else int(match[2])))
            position = match.end()
        groups = _groups(text, body.end())
        replicated = tuple(AxisRef.parse(name, mesh) for name in groups.get("replicated", ()))
        partial = []
        for entry in groups.get("partial", ()):
            name, _, reduction = entry.rpartition(":")
            if not name:
                raise UsageError(f"partial axis {entry!r} names no reduction: write it as '{entry}:sum'")
            partial.append((AxisRef.parse(name, mesh), reduction.strip()))
        return cls(mesh, tuple(dims), replicated, tuple(partial))

    @classmethod
    def from_json(cls, document: dict[str, Any] | None, mesh: Mesh, rank: int) -> "Sharding":
        """From `{dims, open, priority?, replicated?, partial?}`; None is `unknown`."""
        if document is None:
            return cls.unknown(mesh, rank)
        sharding = cls.of(
            mesh,
            document["dims"],
            open=document["open"],
            priority=document.get("priority"),
            replicated=document.get("replicated", ()),
            partial=document.get("partial"),
        )
        if sharding.rank != rank:
            raise UsageError(f"sharding {sharding} has {sharding.rank} dims but its tensor has {rank}")
        return sharding

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "dims": [[axis.text(self.mesh) for axis in dim.axes] for dim in self.dims],
            "open": [dim.open for dim in self.dims],
        }
        if any(dim.priority is not None for dim in self.dims):
            document["priority"] = [dim.priority for dim in self.dims]
        if self.replicated:
            document["replicated"] = [axis.text(self.mesh) for axis in self.replicated]
        if self.partial:
            document["partial"] = {axis.text(self.mesh): reduction for axis, reduction in self.partial}
        return document

    def __str__(self) -> str:
        dims = []
        for dim in self.dims:
            names = [axis.text(self.mesh) for axis in dim.axes] + ["?"] * dim.open
            priority = "" if dim.priority is None else f"p{dim.priority}"
            dims.append("{" + ", ".join(names) + "}" + priority)
        text = "[" + ", ".join(dims) + "]"
        if self.replicated:
            text += " replicated={" + ", ".join(axis.text(self.mesh) for axis in self.replicated) + "}"
        if self.partial:
            entries = (f"{axis.text(self.mesh)}:{reduction}" for axis, reduction in self.partial)
            text += " partial={" + ", ".join(entries) + "}"
        return text

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_unknown(self) -> bool:
        """True if it says nothing: no axis anywhere and every dim open."""
        return not self.replicated and not self.partial and all(d.open and not d.axes for d in self.dims)

    def shards(self, dim: int) -> int:
        """Into how many pieces `dim` is split."""
        return math.prod(axis.size for axis in self.dims[dim].axes)

    def without_priorities(self) -> "Sharding":
        return replace(self, dims=tuple(replace(dim, priority=None) for dim in self.dims))

    def closed(self) -> "Sharding":
        """The same axes, with every dim closed."""
        return replace(self, dims=tuple(replace(dim, open=False) for dim in self.dims))

    def require_divides(self, shape: Sequence[int]) -> None:
        """Raise unless every dim of `shape` splits into equal pieces."""
        self.require_rank(shape)
        for dim, size in enumerate(shape):
            if size % self.shards(dim):
                axes = ", ".join(axis.text(self.mesh) for axis in self.dims[dim].axes)
                raise UsageError(
                    f"dim {dim} of size {size} does not split evenly over {axes} "
                    f"({self.shards(dim)} pieces): use axes whose product divides {size}"
                )

    def require_rank(self, shape: Sequence[int]) -> None:
        if len(shape) != self.rank:
            raise UsageError(
                f"sharding {self} has {self.rank} dims but the shape {tuple(shape)} has {len(shape)}"
            )

    def _places(self) -> list[tuple[AxisRef, str]]:
        """Every axis that is named, with where."""
        places = [(axis, f"dim {dim}") for dim, spec in enumerate(self.dims) for axis in spec.axes]
        places += [(axis, "replicated") for axis in self.replicated]
        return places + [(axis, "partial") for axis, _ in self.partial]

    def _require_axes_of_mesh(self) -> None:
        for axis, _ in self._places():
            AxisRef.parse(f"{axis.name}:({axis.pre}){axis.size}" if axis.size != self.mesh[axis.name] else axis.name, self.mesh)

    def _require_no_overlap(self) -> None:
        seen: dict[str, list[tuple[AxisRef, str]]] = {}
        for axis, place in self._places():
            for other, elsewhere in seen.setdefault(axis.name, []):
                if axis.overlaps(other) or not axis.fits_with(other):
                    first, second = other.text(self.mesh), axis.text(self.mesh)
                    where = place if place == elsewhere else f"{elsewhere} and {place}"
                    if axis == other:
                        raise UsageError(f"axis {first} is used twice, in {where}: an axis may split a tensor once")
                    raise UsageError(f"axes {first} and {second} overlap, in {where}: they are parts of the same axis")
            seen[axis.name].append((axis, place))

    def _require_whole_axes(self) -> None:
        for dim, spec in enumerate(self.dims):
            for major, minor in pairwise(spec.axes):
                if major.name == minor.name and major.end == minor.pre and minor.pre > 1:
                    whole = AxisRef(major.name, major.pre, major.size * minor.size).text(self.mesh)
                    raise UsageError(
                        f"dim {dim} lists {major.text(self.mesh)} and {minor.text(self.mesh)} in sequence: write {whole}"
                    )


def _groups(text: str, position: int) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    while text[position:].strip():
        match = _GROUP.match(text, position)
        if match is None or match[1] not in ("replicated", "partial") or match[1] in groups:
            raise _not_a_sharding(text)
        groups[match[1]] = [part.strip() for part in match[2].split(",")] if match[2].strip() else []
        position = match.end()
    return groups


def _in_mesh_order(axes: Iterable[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    return tuple(sorted(axes, key=lambda axis: (mesh.index(axis.name), axis.pre)))


def _not_a_sharding(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a sharding: write it as '[{{dp}}, {{tp, ?}}]', with 'replicated={{...}}' "
        "and 'partial={...:sum}' after it where needed"
    )
