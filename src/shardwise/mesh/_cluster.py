"""`Cluster`: the speed of devices and of the links between them.

A cluster is a device and a stack of links, from the closest (inside an island) outwards. The link of a mesh axis
follows from the positions of its ranks: rank r is in island r // size, with ranks numbered as in `DeviceMesh`.
Clusters are documents; `presets/` has those that are shipped, and a document may name the devices and links of those.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from ..documents import Field
from ..errors import UsageError, require
from ..files import read_document
from ._device import Device, read_device
from ._links import Link, Span, read_link
from ._mesh import Mesh

Made = TypeVar("Made")

# The cluster of prices where none is given.
DEFAULT_CLUSTER = "h100"

SHIPPED = Path(__file__).parent / "presets"

# The presets in the order in which they are listed.
_PRESETS = ("h100", "h100-efa", "h100-meta", "h200", "b200", "a100", "l40s", "tpu", "laptop")


@dataclass(frozen=True)
class Level:
    """Islands of `size` devices joined by `link`; the outermost level has no limit and so no size."""

    link: Link
    size: int | None = None


@dataclass(frozen=True)
class Cluster:
    """Devices and links. `axes` overrides the link of mesh axes by name; `origin` says where the numbers are from.

    >>> mesh, h100 = Mesh.parse("dp=4,tp=8"), Cluster.preset("h100")
    >>> h100.link(mesh, "tp").bandwidth > 5 * h100.link(mesh, "dp").bandwidth
    True
    >>> Cluster.from_json(h100.to_json()) == h100
    True
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    axes: Mapping[str, Link] = field(default_factory=dict)
    origin: str = ""

    def __post_init__(self) -> None:
        require(self.device, Device, "device", "a Device")
        require(self.levels, (tuple, list), "levels", "a tuple of Levels, innermost first")
        for level in self.levels:
            require(level, Level, "a level", "a Level, such as Level(link, 8)")
        sizes = [level.size for level in self.levels]
        if not sizes or sizes[-1] is not None or None in sizes[:-1]:
            raise UsageError(f"cluster {self.name!r} must have levels, of which only the last has no size")
        inner = [size for size in sizes if size is not None]
        if any(size < 1 for size in inner) or any(b % a for a, b in pairwise(inner)):
            raise UsageError(f"cluster {self.name!r}: a level's size must be a multiple of the one inside")

    def __hash__(self) -> int:
        return hash((self.name, self.device, self.levels, tuple(sorted(self.axes))))

    @classmethod
    def preset(cls, name: str) -> "Cluster":
        if name not in _PRESETS:
            raise UsageError(f"unknown cluster {name!r}: use one of {', '.join(_PRESETS)}, or a JSON file")
        return _preset(name)

    @classmethod
    def presets(cls) -> tuple[str, ...]:
        return _PRESETS

    @classmethod
    def of(cls, cluster: "Cluster | str | Path") -> "Cluster":
        """A cluster given as a `Cluster`, the name of a preset or a JSON file."""
        if isinstance(cluster, Cluster):
            return cluster
        if str(cluster).endswith(".json"):
            return read_document(Path(cluster), cls.from_json)
        return cls.preset(str(cluster))

    def __repr__(self) -> str:
        sizes = " of ".join(str(level.size) for level in self.levels if level.size is not None)
        inside = f", islands of {sizes}" if sizes else ""
        return f"<Cluster {self.name}: {self.device.name}, {self.device.memory / 1e9:.0f} GB{inside}>"

    def with_axes(self, **links: Link) -> "Cluster":
        """This cluster with the given links for the named axes."""
        return replace(self, axes={**self.axes, **links})

    def link(self, mesh: Mesh, *axes: str | int) -> Link | Span:
        """What collectives along an axis of a mesh use, or along several together: a link, or a span of islands with
        several members each. Of several links given for axes it is the outermost one's."""
        indices = sorted(mesh.index(axis) if isinstance(axis, str) else axis for axis in axes)
        for index in indices:
            if mesh.names[index] in self.axes:
                return self.axes[mesh.names[index]]
        starts = [0]
        for index in indices:
            stride = math.prod(mesh.shape[index + 1 :])
            starts = [start + place * stride for start in starts for place in range(mesh.shape[index])]
        return self._reach(starts, stride, math.prod(mesh.shape[indices[0] :]), mesh.ranks)

    def _reach(self, members: Sequence[int], stride: int, block: int, devices: int) -> Link | Span:
        """The slowest link among the groups of devices like the first, whose `members` are `stride` apart or more, on
        this number of devices.

        Groups lie in consecutive blocks of devices. Unless all devices are in one island, a block size that does not
        divide the island puts some group in two islands. A group that crosses islands sends through the outer links of
        all its members in an island at once.
        """
        for depth, level in enumerate(self.levels):
            if level.size is None or devices <= level.size or level.size % block == 0:
                inner = self.levels[depth - 1] if depth else None
                if inner is None or inner.size is None or stride >= inner.size:
                    return level.link
                island = math.gcd(inner.size, block)
                fewest = sum(member + stride <= island for member in members)  # in one island
                return Span(level.link, inner.link, max(fewest, 1))
        raise AssertionError("the last level has no limit")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Any) -> "Cluster":
        return cls.read(Field(document))

    @classmethod
    def read(cls, document: Field) -> "Cluster":
        """The cluster in a field of a document. A device or link that is a text is the shipped one of that name."""
        fields = document.object(("name", "device", "levels"), ("axes", "origin"))
        levels = []
        for level in fields["levels"].items():
            inside = level.object(("link",), ("size",))
            size = inside["size"].optional(lambda one: one.integer(least=1)) if "size" in inside else None
            levels.append(Level(_link(inside["link"]), size))
        axes = fields["axes"].members() if "axes" in fields else {}
        links = {name: _link(link) for name, link in axes.items()}
        device = _named(fields["device"], "devices", read_device)
        origin = fields["origin"].text() if "origin" in fields else ""
        with document.checked():
            return cls(fields["name"].text(), device, tuple(levels), links, origin)


def _link(document: Field) -> Link:
    return _named(document, "links", read_link)


def _named(document: Field, folder: str, read: Callable[[Field], Made]) -> Made:
    """A device or a link: a document, or the name of a shipped one."""
    if not isinstance(document.value, str):
        return read(document)
    name = document.one_of(sorted(path.stem for path in (SHIPPED / folder).glob("*.json")))
    return read_document(SHIPPED / folder / f"{name}.json", lambda found: read(Field(found)))


@cache
def _preset(name: str) -> Cluster:
    return read_document(SHIPPED / "clusters" / f"{name}.json", Cluster.from_json)
