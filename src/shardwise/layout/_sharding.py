"""`Sharding`: the mesh axes that shard each dim of one tensor.

For each dim an ordered list of axes (or sub-axes), major to minor. A dim may be open: propagation may
append axes to it, never remove or reorder them. The tensor is replicated along axes that are not listed.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

from ..documents import Field
from ..errors import UsageError, require
from ..mesh import Mesh
from ..placements import PARTIALS, is_partial, is_shard, partial, placement_text
from ._axes import AxisRef
from ._layout import Layout

_DIM = re.compile(r"\{([^{}]*)\}\s*(?:p\s*(\d+))?")
_GROUP = re.compile(r"\s*(\w+)\s*=\s*\{([^{}]*)\}\s*,?")
_AXES = str | Sequence[str] | None


@dataclass(frozen=True)
class DimSharding:
    """One dim: its axes, major to minor, whether propagation may append more, and its priority (0 first)."""

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
        require(self.mesh, Mesh, "the mesh of a sharding", "a Mesh, or use Sharding.parse")
        require(self.dims, tuple, "dims", "a tuple with a DimSharding per dim, or use Sharding.parse")

        def place(axis: AxisRef) -> tuple[int, int]:
            return self.mesh.index(axis.name), axis.pre

        # Their order has no meaning: sorting them as in the mesh makes equal shardings equal values.
        object.__setattr__(self, "replicated", tuple(sorted(self.replicated, key=place)))
        object.__setattr__(self, "partial", tuple(sorted(self.partial, key=lambda entry: place(entry[0]))))
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
        partial: Mapping[str, str] | None = None,
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
        """The sharding without information: every dim open and without axes."""
        return cls(Mesh.of(mesh), (DimSharding(),) * rank)

    @classmethod
    def parse(cls, text: str, mesh: Mesh | str) -> "Sharding":
        """The sharding with this text form: `[{dp}, {tp:(1)2, ?}p1] replicated={pp} partial={ep:sum}`."""
        mesh = Mesh.of(mesh)
        require(text, str, "sharding", "text such as '[{dp}, {tp, ?}]'")
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
                raise UsageError(f"partial axis {entry!r} has no reduction: write it as '{entry}:sum'")
            partial.append((AxisRef.parse(name, mesh), reduction.strip()))
        return cls(mesh, tuple(dims), replicated, tuple(partial))

    @classmethod
    def from_json(cls, document: dict[str, Any] | str | None, mesh: Mesh, rank: int) -> "Sharding":
        """From `{dims, open, priority?, replicated?, partial?}` or the text form; None is `unknown`."""
        return cls.read(Field(document), mesh, rank)

    @classmethod
    def read(cls, document: Field, mesh: Mesh, rank: int) -> "Sharding":
        """The sharding in a field of a document, as `from_json` describes it."""
        if document.value is None:
            return cls.unknown(mesh, rank)
        if isinstance(document.value, str):
            sharding = document.parsed(lambda text: cls.parse(text, mesh))
        else:
            given = _read_fields(document)
            with document.checked():
                sharding = cls.of(mesh, **given)
        if sharding.rank != rank:
            raise document.wrong(f"expected {rank} dims, as its tensor has, found {sharding}")
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

    def __repr__(self) -> str:
        return f"Sharding.parse({str(self)!r}, {str(self.mesh)!r})"

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_unknown(self) -> bool:
        """True if it has no information: no axis and every dim open."""
        return not self.replicated and not self.partial and all(d.open and not d.axes for d in self.dims)

    def shards(self, dim: int) -> int:
        """The number of shards of `dim`."""
        return math.prod(axis.size for axis in self.dims[dim].axes)

    def without_priorities(self) -> "Sharding":
        return replace(self, dims=tuple(replace(dim, priority=None) for dim in self.dims))

    def closed(self) -> "Sharding":
        """The same axes, with every dim closed."""
        return replace(self, dims=tuple(replace(dim, open=False) for dim in self.dims))

    def require_rank(self, shape: Sequence[int]) -> None:
        if len(shape) != self.rank:
            raise UsageError(
                f"sharding {self} has {self.rank} dims but the shape {tuple(shape)} has {len(shape)}"
            )

    # -- as layouts and DTensor placements

    def to_layout(self) -> Layout:
        """The layout with these axes. Its mesh is `split_mesh()`, which splits axes into the sub-axes used here."""
        return layouts_of([self])[0]

    @classmethod
    def from_layout(cls, layout: Layout, rank: int, *, open: bool = False) -> "Sharding":
        """The sharding of a tensor of `rank` dims in this layout."""
        strided = [p for p in layout.placements if is_shard(p) and hasattr(p, "split_factor")]
        if strided:
            raise UsageError(
                f"layout '{layout}' has {placement_text(strided[0])}, which corresponds to no order of axes on the "
                "dim, and so to no sharding"
            )
        if layout.sharded_dims and layout.sharded_dims[-1] >= rank:
            raise UsageError(
                f"layout '{layout}' shards dim {layout.sharded_dims[-1]} but the tensor has {rank} dims"
            )
        partials = {
            name: placement.reduce_op
            for name, placement in zip(layout.mesh.names, layout.placements, strict=True)
            if is_partial(placement)
        }
        return cls.of(layout.mesh, layout.dims(rank), open=open, partial=partials)

    def to_placements(self) -> tuple[Placement, ...]:
        """DTensor's placements on a `DeviceMesh` with the axes of `split_mesh()`; strided shards where the axes of
        one dim are not in the order of the mesh."""
        return self.to_layout().to_placements()

    @classmethod
    def from_placements(
        cls, placements: Sequence[Placement], mesh: Mesh | str | DeviceMesh, rank: int, *, open: bool = False
    ) -> "Sharding":
        """The sharding of a DTensor: `from_placements(x.placements, x.device_mesh, x.ndim)`."""
        return cls.from_layout(Layout(Mesh.of(mesh), tuple(placements)), rank, open=open)

    def split_mesh(self) -> Mesh:
        """The mesh with its axes split into the sub-axes used here: `tp=4` into `tp_0=2,tp_1=2`."""
        return self.to_layout().mesh

    def local_shape(self, shape: Sequence[int], rank: int = 0) -> tuple[int, ...]:
        """The local shape on `rank` of a tensor of `shape`."""
        self.require_rank(shape)
        return self.to_layout().local_shape(shape, rank)

    def offset(self, shape: Sequence[int], rank: int = 0) -> tuple[int, ...]:
        """The position of the first element that `rank` holds."""
        self.require_rank(shape)
        return self.to_layout().offset(shape, rank)

    # -- checks

    def _places(self) -> list[tuple[AxisRef, str]]:
        """Every axis that is used, with where."""
        places = [(axis, f"dim {dim}") for dim, spec in enumerate(self.dims) for axis in spec.axes]
        places += [(axis, "replicated") for axis in self.replicated]
        return places + [(axis, "partial") for axis, _ in self.partial]

    def _require_axes_of_mesh(self) -> None:
        for axis, _ in self._places():
            axis.require_on(self.mesh)

    def _require_no_overlap(self) -> None:
        seen: dict[str, list[tuple[AxisRef, str]]] = {}
        for axis, place in self._places():
            for other, elsewhere in seen.setdefault(axis.name, []):
                if axis.overlaps(other) or not axis.fits_with(other):
                    first, second = other.text(self.mesh), axis.text(self.mesh)
                    where = place if place == elsewhere else f"{elsewhere} and {place}"
                    if axis == other:
                        raise UsageError(
                            f"axis {first} is used twice, in {where}: an axis can be used once per tensor"
                        )
                    raise UsageError(
                        f"axes {first} and {second} overlap, in {where}: they are parts of the same axis"
                    )
            seen[axis.name].append((axis, place))

    def _require_whole_axes(self) -> None:
        for dim, spec in enumerate(self.dims):
            for major, minor in pairwise(spec.axes):
                if major.name == minor.name and major.end == minor.pre and minor.pre > 1:
                    whole = AxisRef(major.name, major.pre, major.size * minor.size).text(self.mesh)
                    raise UsageError(
                        f"dim {dim} lists {major.text(self.mesh)} and {minor.text(self.mesh)} in "
                        f"sequence: write {whole}"
                    )


def _read_fields(document: Field) -> dict[str, Any]:
    """The arguments of `Sharding.of` in a document."""
    fields = document.object(("dims", "open"), ("priority", "replicated", "partial"))
    given: dict[str, Any] = {
        "dims": [[axis.text() for axis in dim.items()] for dim in fields["dims"].items()],
        "open": [dim.flag() for dim in fields["open"].items()],
    }
    if "priority" in fields:
        priority = fields["priority"].items()
        given["priority"] = [dim.optional(lambda one: one.integer(least=0)) for dim in priority]
    if "replicated" in fields:
        given["replicated"] = [axis.text() for axis in fields["replicated"].items()]
    if "partial" in fields:
        given["partial"] = {axis: kind.text() for axis, kind in fields["partial"].members().items()}
    return given


def layouts_of(shardings: Sequence[Sharding]) -> list[Layout]:
    """The layouts of shardings on one mesh, whose axes are split into all sub-axes that they use."""
    mesh = shardings[0].mesh
    parts: dict[str, list[tuple[str, AxisRef]]] = {}
    for name, size in zip(mesh.names, mesh.shape, strict=True):
        named = [axis for sharding in shardings for axis, _ in sharding._places() if axis.name == name]
        ends = sorted({1, size, *(end for axis in named for end in (axis.pre, axis.end))})
        if any(high % low for low, high in pairwise(ends)):
            raise UsageError(
                f"{', '.join(a.text(mesh) for a in named)} are not sub-axes of one split of axis {name}"
            )
        refs = [AxisRef(name, low, high // low) for low, high in pairwise(ends)]
        split = len(refs) > 1
        parts[name] = [(f"{name}_{i}" if split else name, ref) for i, ref in enumerate(refs)]
        if not refs:
            parts[name] = [(name, AxisRef(name, 1, size))]
    split_mesh = Mesh(
        tuple(part for name in mesh.names for part, _ in parts[name]),
        tuple(ref.size for name in mesh.names for _, ref in parts[name]),
    )

    def names(axis: AxisRef) -> list[str]:
        return [name for name, part in parts[axis.name] if axis.contains(part)]

    return [
        Layout.from_dims(
            split_mesh,
            [[name for axis in dim.axes for name in names(axis)] for dim in sharding.dims],
            {name: partial(reduction) for axis, reduction in sharding.partial for name in names(axis)},
        )
        for sharding in shardings
    ]


def _groups(text: str, position: int) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    while text[position:].strip():
        match = _GROUP.match(text, position)
        if match is None or match[1] not in ("replicated", "partial") or match[1] in groups:
            raise _not_a_sharding(text)
        groups[match[1]] = [part.strip() for part in match[2].split(",")] if match[2].strip() else []
        position = match.end()
    return groups


def _not_a_sharding(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a sharding: write it as '[{{dp}}, {{tp, ?}}]', with 'replicated={{...}}' "
        "and 'partial={...:sum}' after it where needed"
    )
