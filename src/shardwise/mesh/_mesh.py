"""`Mesh`: named axes with sizes, in order; row-major over ranks like PyTorch's `DeviceMesh`."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ..errors import UsageError, require

_AXIS = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\d+)\s*")


@dataclass(frozen=True)
class Mesh:
    """A device mesh with named axes.

    >>> mesh = Mesh.parse("dp=2,tp=4")
    >>> mesh.shape, mesh["tp"], mesh.ranks
    ((2, 4), 4, 8)
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        require(self.names, tuple, "names", "a tuple such as ('dp', 'tp')")
        require(self.shape, tuple, "shape", "a tuple such as (2, 4)")
        if len(self.names) != len(self.shape):
            raise UsageError(f"mesh has {len(self.names)} names but {len(self.shape)} sizes")
        for name, size in zip(self.names, self.shape, strict=True):
            require(size, int, f"the size of mesh axis {name!r}", "a whole number, at least 1")
            if size < 1:
                raise UsageError(f"mesh axis {name!r} has size {size}: it must be at least 1")
            if self.names.count(name) > 1:
                raise UsageError(f"mesh axis {name!r} occurs twice")

    @classmethod
    def parse(cls, text: str) -> "Mesh":
        require(text, str, "mesh", "text such as 'dp=2,tp=4'")
        parts = [_AXIS.fullmatch(part) for part in text.split(",")]
        if not all(parts):
            raise UsageError(f"mesh {text!r} is not of the form 'dp=2,tp=4'")
        return cls(tuple(p[1] for p in parts if p), tuple(int(p[2]) for p in parts if p))

    @classmethod
    def of(cls, mesh: "Mesh | str | DeviceMesh") -> "Mesh":
        """A mesh given as a `Mesh`, a `DeviceMesh` or text."""
        if isinstance(mesh, Mesh):
            return mesh
        if isinstance(mesh, DeviceMesh):
            return cls.from_device_mesh(mesh)
        if not isinstance(mesh, str):
            raise UsageError(f"{mesh!r} is not a mesh: give a Mesh, a DeviceMesh or text such as 'dp=2,tp=4'")
        return cls.parse(mesh)

    @classmethod
    def from_device_mesh(cls, mesh: DeviceMesh) -> "Mesh":
        """Axes without a name are called `axis0`, `axis1`, ..."""
        names = mesh.mesh_dim_names or tuple(f"axis{i}" for i in range(mesh.ndim))
        return cls(tuple(names), tuple(mesh.shape))

    def to_device_mesh(self, device_type: str = "cpu") -> DeviceMesh:
        """The `DeviceMesh` over the running process group; its size must be `ranks`."""
        return init_device_mesh(device_type, self.shape, mesh_dim_names=self.names)

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.index(axis)]

    def __contains__(self, axis: object) -> bool:
        return axis in self.names

    def __str__(self) -> str:
        return ",".join(f"{n}={s}" for n, s in zip(self.names, self.shape, strict=True))

    def __repr__(self) -> str:
        return f"Mesh.parse({str(self)!r})"

    def index(self, axis: str) -> int:
        if axis not in self.names:
            raise UsageError(f"mesh {self} has no axis {axis!r}: use one of {', '.join(self.names)}")
        return self.names.index(axis)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def ranks(self) -> int:
        return math.prod(self.shape)

    def rank(self, coordinate: Sequence[int]) -> int:
        """The rank at a position: `mesh.rank(mesh.coordinate(r))` is r."""
        rank = 0
        for size, place in zip(self.shape, coordinate, strict=True):
            rank = rank * size + place
        return rank

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Position of `rank` on each axis."""
        position = []
        for size in reversed(self.shape):
            rank, place = divmod(rank, size)
            position.append(place)
        return tuple(reversed(position))
