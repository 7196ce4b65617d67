"""Arguments that come from another mesh, and results that go to one: a loader on CPUs, a model on GPUs, an evaluator.

The layout in which such a tensor enters or leaves the plan's mesh is a choice like any other: what it costs to transfer
it is part of the price. Every rank sends what others need directly to them (`sw.transfer`), so the time is that of the
device which sends or receives most.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..documents import Field
from ..errors import UsageError, require
from ..graph import Graph, Named, TensorInfo, named_tensors
from ..layout import Layout
from ..mesh import Cluster, Mesh
from ..redistribution import parcels


@dataclass(frozen=True)
class Elsewhere:
    """Where a tensor is besides the plan's mesh: its layout on a mesh of its own, such as `"loader=2"` and `"S(0)"`.

    `ranks` are the processes of that mesh, row by row, by default the first ones; `device` is their kind. Each device
    of either mesh sends and receives `bandwidth` bytes per second after `latency` seconds, by default those of the
    cluster's outermost link.

    >>> loader = Elsewhere("loader=2", "S(0)", device="cpu", bandwidth=25e9)
    >>> print(loader)
    S(0) on cpu mesh loader=2
    """

    mesh: str
    placements: str
    ranks: tuple[int, ...] | None = None
    device: str = "cpu"
    bandwidth: float | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        for name in ("mesh", "placements"):
            object.__setattr__(self, name, str(getattr(self, name)))
        ranks = tuple(range(self.on.ranks)) if self.ranks is None else tuple(self.ranks)
        object.__setattr__(self, "ranks", ranks)
        if len(ranks) != self.on.ranks:
            raise UsageError(
                f"mesh {self.mesh} has {self.on.ranks} ranks, but {len(ranks)} are given: {ranks}"
            )
        if self.layout.reductions:
            raise UsageError(f"a tensor on another mesh cannot be {self.placements}: use R and S only")
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise UsageError(f"bandwidth is {self.bandwidth}: give bytes per second")

    @property
    def on(self) -> Mesh:
        return Mesh.parse(self.mesh)

    @property
    def layout(self) -> Layout:
        return Layout.parse(self.placements, self.on)

    def seconds(self, tensor: TensorInfo, layout: Layout, cluster: Cluster, *, arrives: bool) -> float:
        """What it takes to transfer a tensor to a layout of the plan's mesh, or from it."""
        here, there = (layout, range(layout.mesh.ranks)), (self.layout, self.ranks or ())
        (source, senders), (target, receivers) = (there, here) if arrives else (here, there)
        moved: Counter[tuple[str, int]] = Counter()
        for parcel in parcels(tensor.shape, source, senders, target, receivers):
            # A host's memory is not its device's.
            if parcel.sender != parcel.receiver or self.device == "cpu":
                moved["sent", parcel.sender] += parcel.numel
                moved["received", parcel.receiver] += parcel.numel
        if not moved:
            return 0.0
        link = cluster.levels[-1].link
        latency = link.launch + link.latency if self.latency is None else self.latency
        return latency + max(moved.values()) * tensor.dtype.itemsize / (self.bandwidth or link.bandwidth)

    def __str__(self) -> str:
        return f"{self.placements} on {self.device} mesh {self.mesh}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, document: Field) -> "Elsewhere":
        fields = document.object(("mesh", "placements", "ranks", "device", "bandwidth", "latency"))
        with document.checked():
            return cls(
                fields["mesh"].text(),
                fields["placements"].text(),
                tuple(rank.integer(least=0) for rank in fields["ranks"].items()),
                fields["device"].text(),
                fields["bandwidth"].optional(Field.number),
                fields["latency"].optional(Field.number),
            )


def require_elsewhere(elsewhere: Mapping[str, Elsewhere], graph: Graph) -> None:
    """Refuse what is not the name of an argument or a result, or does not fit it."""
    require(elsewhere, Mapping, "elsewhere", "a dict such as {'x': Elsewhere('loader=2', 'S(0)')}")
    tensors = {
        named: graph.tensor(ref) for named, ref in named_tensors(graph) if named.kind in ("input", "output")
    }
    trained = {entry.target for entry in graph.with_role("tangent")}
    trained |= {output.target for output in graph.outputs if output.role == "gradient"}
    for pattern, place in elsewhere.items():
        require(
            place, Elsewhere, f"elsewhere[{pattern!r}]", "an Elsewhere, such as Elsewhere('loader=2', 'S(0)')"
        )
        found = [named for named in tensors if named.matches(pattern)]
        if not found:
            known = ", ".join(named.name for named in tensors)
            raise UsageError(
                f"elsewhere {pattern!r} matches no argument or result of {graph.name}: there are {known}"
            )
        for named in found:
            if named.name in trained:
                raise UsageError(
                    f"{named.name} has a gradient, which would have to come back from {place}: elsewhere is for "
                    "arguments and results without one"
                )
            dims, rank = place.layout.sharded_dims, len(tensors[named].shape)
            if dims and dims[-1] >= rank:
                raise UsageError(
                    f"elsewhere {pattern!r} shards dim {dims[-1]} of {named.name}, which has {rank} dims"
                )


def place_of(elsewhere: Mapping[str, Elsewhere], named: Named) -> Elsewhere | None:
    """Where a tensor is besides the plan's mesh; None if nowhere."""
    return next((place for pattern, place in elsewhere.items() if named.matches(pattern)), None)
