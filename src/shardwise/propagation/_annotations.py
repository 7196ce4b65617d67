"""Annotations: shardings that the user gives to a few tensors of a graph, by name pattern.

    {"x": "[{dp}, {}]", "layers.*.up.weight": "[{tp}, {?}]", "output:loss": "[]"}

Where several patterns match a tensor, it has what they say together.
"""

from collections.abc import Mapping

from ..errors import UsageError, require
from ..graph import Graph, Named, matched
from ..layout import Sharding
from ..mesh import Mesh
from ._state import State, joined_states


class Annotations:
    """Shardings by pattern, on a mesh."""

    def __init__(self, mesh: Mesh, shardings: Mapping[str, Sharding | str] | None) -> None:
        self.mesh = mesh
        require(shardings or {}, Mapping, "shardings", "a dict such as {'x': '[{dp}, {}]'}")
        self.shardings = {name: self._read(name, given) for name, given in (shardings or {}).items()}

    def _read(self, name: str, given: Sharding | str) -> Sharding:
        require(name, str, "a name in shardings", "a name or a pattern such as '*.weight'")
        require(given, (Sharding, str), f"the sharding of {name!r}", "text such as '[{dp}, {}]'")
        try:
            sharding = Sharding.parse(given, self.mesh) if isinstance(given, str) else given
            if sharding.mesh != self.mesh:
                raise UsageError(f"it is of mesh {sharding.mesh}, and the mesh here is {self.mesh}")
        except UsageError as error:
            raise UsageError(f"the sharding of {name!r}: {error}") from None
        return sharding

    @property
    def texts(self) -> dict[str, str]:
        return {name: str(sharding) for name, sharding in self.shardings.items()}

    def of(self, named: Named, rank: int) -> Sharding | None:
        """What the patterns that match a tensor of this rank say together; None if none does."""
        found = [sharding for pattern, sharding in self.shardings.items() if named.matches(pattern)]
        if not found:
            return None
        assert all(sharding.rank == rank for sharding in found), "require_fit refuses others"
        agreed: State | None = State.of(found[0])
        for other in found[1:]:
            agreed = None if agreed is None else joined_states(agreed, State.of(other))
        if agreed is None:
            texts = " and ".join(map(str, found))
            raise UsageError(f"{named.name} is given shardings that contradict each other: {texts}")
        return agreed.sharding(self.mesh)

    def require_fit(self, graph: Graph) -> None:
        """Refuse patterns that match nothing, and shardings of tensors of another rank."""
        for pattern, sharding in self.shardings.items():
            for named, shape in matched(graph, pattern, f"{pattern!r} in shardings"):
                if sharding.rank != len(shape):
                    raise UsageError(
                        f"the sharding {sharding} of {pattern!r} has {sharding.rank} dims, but {named.name} has shape "
                        f"{shape}"
                    )
