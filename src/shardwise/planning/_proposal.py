"""What propagation proposes: from the shardings and pins of a few tensors, a placement on every axis for all others.

As a restriction on the plan problem it leaves the choices that agree with the proposal: tensors are sharded as
propagated, and replicated or partial on the other axes. Where the tensors of a call conflict, so that no choice agrees
on an axis, every choice on that axis stays, and prices decide.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.placement_types import Placement

from ..errors import UsageError
from ..factors import FactorRule, factors_of
from ..graph import Graph, Input, Named, Node, Ref, named_tensors
from ..layout import AxisRef, DimSharding, Layout, Sharding
from ..mesh import Mesh
from ..placements import is_partial, is_replicate, is_shard, shard
from ..propagation import Annotations, GraphPropagation, propagate_graph
from ._baselines import Moves
from ._choices import Choices, Layouts
from ._offers import Offers
from ._pins import Pins

if TYPE_CHECKING:
    from ._plan import Plan

# On each axis the placement that is proposed; None where propagation proposes none, such as a part of an axis.
Proposed = tuple[Placement | None, ...]


class PinsAndShardings(Annotations):
    """What propagation starts from: the shardings that are given, and the layouts that are pinned."""

    def __init__(self, mesh: Mesh, shardings: Mapping[str, Sharding | str] | None, pins: Pins) -> None:
        super().__init__(mesh, shardings)
        self.pins = pins
        for name, sharding in self.shardings.items():
            _require_layout(name, sharding)

    def of(self, named: Named, rank: int) -> Sharding | None:
        given, pinned = super().of(named, rank), self.pins.placements(named)
        if given is not None and pinned:
            raise UsageError(f"{named.name} is pinned and has a sharding as well: give one of them")
        return given if given is not None else _pinned(self.mesh, pinned, rank)

    def is_given(self, named: Named) -> bool:
        return any(named.matches(pattern) for pattern in self.shardings)


def with_shardings(pins: Pins, shardings: Mapping[str, Sharding], graph: Graph) -> Pins:
    """The pins, and closed shardings of inputs and outputs, which pin as well: no plan may choose such layouts by
    itself."""
    known = [named for named, _ in named_tensors(graph) if named.kind != "node"]
    closed = {
        pattern: sharding
        for pattern, sharding in shardings.items()
        if not any(dim.open for dim in sharding.dims) and any(named.matches(pattern) for named in known)
    }
    return Pins(pins.mesh, {**pins.pins, **closed})


def _require_layout(name: str, sharding: Sharding) -> None:
    """Refuse a sharding that no layout of a plan is: parts of axes, open dims in another order than the mesh's, partial
    sums."""
    mesh = sharding.mesh
    for dim in sharding.dims:
        places = [mesh.index(axis.name) for axis in dim.axes]
        if any(axis.size != mesh.shape[place] for axis, place in zip(dim.axes, places, strict=True)):
            raise UsageError(
                f"the sharding {sharding} of {name!r} has a part of an axis: plan for a mesh that has it as an axis"
            )
        if places != sorted(places) and any(dim.open for dim in sharding.dims):
            raise UsageError(
                f"the sharding {sharding} of {name!r} has axes in another order than mesh {mesh}: close all of its dims"
            )
    if sharding.partial:
        raise UsageError(f"the sharding {sharding} of {name!r} is partial: only a call's result can be so")


def _pinned(mesh: Mesh, pinned: Mapping[int, Placement], rank: int) -> Sharding | None:
    """A pin as a sharding: open where it does not speak of every axis."""
    if not pinned or any(hasattr(p, "split_factor") or is_partial(p) for p in pinned.values()):
        return None
    long = [axis for axis in sorted(pinned) if mesh.shape[axis] > 1]
    axes = {axis: AxisRef(mesh.names[axis], 1, mesh.shape[axis]) for axis in long}
    closed = len(long) == sum(size > 1 for size in mesh.shape)
    dims = [
        DimSharding(tuple(ref for axis, ref in axes.items() if _shards(pinned[axis], dim)), open=not closed)
        for dim in range(rank)
    ]
    replicated = () if closed else tuple(ref for axis, ref in axes.items() if is_replicate(pinned[axis]))
    return Sharding(mesh, tuple(dims), replicated)


@dataclass
class Proposal:
    """The propagated shardings of a graph as placements, and as a restriction on choices."""

    graph: Graph
    layouts: Layouts
    given: PinsAndShardings
    outcome: GraphPropagation
    _agreed: dict[tuple[int, Proposed], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, layouts: Layouts, given: PinsAndShardings, offers: Offers) -> "Proposal":
        rules: dict[object, FactorRule | None] = {}

        def rule(node: Node) -> FactorRule | None:
            """From the book, else from what experiments found for the node."""
            call = graph.call(node)
            if call.signature not in rules:
                known = graph.rule(node)
                if known is None and offers.of(node).source == "discovered":
                    known = factors_of(call, offers.of(node).rows)
                rules[call.signature] = known
            return rules[call.signature]

        return cls(graph, layouts, given, propagate_graph(graph, given, rules=rule))

    def proposed(self, ref: Ref) -> Proposed:
        return placements_of(self.outcome.sharding(ref))

    def departures(self, plan: "Plan") -> list[Node]:
        """The calls of a plan with a tensor that is not as proposed."""
        return [
            node
            for node in self.graph.nodes
            if not all(agrees(layout, self.proposed(ref)) for ref, layout in tensors_of(plan, node))
        ]

    # -- as a restriction

    def of_input(self, entry: Input, options: np.ndarray) -> np.ndarray | None:
        mask = self._agreeing(self.proposed(Ref(entry.name)), options)
        named = None if entry.role == "tangent" else Named.input(entry)
        return self._left(mask, named, entry.tensor.shape)

    def of_output(self, position: int, options: np.ndarray) -> np.ndarray | None:
        output, sharding = self.graph.outputs[position], self.outcome.output(position)
        assert output.value is not None and sharding is not None  # outputs that are tensors have one
        mask = self._agreeing(placements_of(sharding), options)
        named = Named("output", output.target) if output.role == "user_output" else None
        return self._left(mask, named, self.graph.tensor(output.value).shape)

    def of_call(self, node: Node, choices: Choices) -> np.ndarray | None:
        """The choices that agree on all axes, else on as many as possible."""
        made = [(Ref(node.name, i), column) for i, column in enumerate(choices.outputs) if column is not None]
        tensors = [
            (self.proposed(ref), column)
            for ref, column in (*zip(node.inputs, choices.inputs, strict=True), *made)
        ]
        every = self._as_given(node, choices)
        axes = [axis for axis, size in enumerate(self.layouts.mesh.shape) if size > 1]
        agreeing = {
            axis: np.logical_and.reduce(
                [every, *(self._agreeing(_only(axis, proposed), column) for proposed, column in tensors)]
            )
            for axis in axes
        }
        for count in range(len(axes), 0, -1):
            for some in combinations(axes, count):
                mask = np.logical_and.reduce([agreeing[axis] for axis in some])
                if mask.any():
                    return mask
        return every

    def _as_given(self, node: Node, choices: Choices) -> np.ndarray:
        """The choices that keep to the sharding that a node itself was given; all if it was given none."""
        every, column, named = np.ones(len(choices), bool), choices.outputs[:1], Named("node", node.name)
        if not column or column[0] is None or not self.given.is_given(named):
            return every
        ref = Ref(node.name)
        left = self._left(self._agreeing(self.proposed(ref), column[0]), named, self.graph.tensor(ref).shape)
        return every if left is None else left

    def _left(self, mask: np.ndarray, named: Named | None, shape: tuple[int, ...]) -> np.ndarray | None:
        """What is left for a tensor: what agrees, or everything, if nothing does or pins decide. A sharding that was
        given is kept to."""
        if named is not None and self.given.pins.placements(named):
            return None
        if mask.any():
            return mask
        if named is not None and self.given.is_given(named):
            raise UsageError(
                f"{named.name} of shape {shape} cannot have the sharding {self.given.of(named, len(shape))}: a dim is "
                "cut into no more pieces than it has elements, and as the rows of the operator allow"
            )
        return None

    def of_move(self, ref: Ref) -> Moves | None:
        return None

    def _agreeing(self, proposed: Proposed, options: np.ndarray) -> np.ndarray:
        different, back = np.unique(options, return_inverse=True)
        return np.array([self._agrees(number, proposed) for number in different.tolist()], bool)[back]

    def _agrees(self, number: int, proposed: Proposed) -> bool:
        key = number, proposed
        if key not in self._agreed:
            self._agreed[key] = agrees(self.layouts.all[number], proposed)
        return self._agreed[key]


def placements_of(sharding: Sharding) -> Proposed:
    """The placements that a sharding proposes; a part of an axis is no placement of the axis."""
    mesh = sharding.mesh
    found: dict[str, Placement | None] = dict.fromkeys(mesh.names, Replicate())
    for dim, part in enumerate(sharding.dims):
        for axis in part.axes:
            whole = axis.size == mesh.shape[mesh.index(axis.name)]
            found[axis.name] = shard(dim) if whole else None
    return tuple(found.values())


def agrees(layout: Layout, proposed: Proposed) -> bool:
    """True if a tensor in a layout is sharded where that is proposed, and nowhere else."""
    for size, placement, wanted in zip(layout.mesh.shape, layout.placements, proposed, strict=True):
        if size == 1 or wanted is None:
            continue
        if is_shard(wanted) != is_shard(placement) or (is_shard(wanted) and placement.dim != wanted.dim):
            return False
    return True


def tensors_of(plan: "Plan", node: Node) -> Iterator[tuple[Ref, Layout]]:
    """The tensors of a call, and their layouts there."""
    choice = plan.choices[node.name]
    yield from zip(node.inputs, choice.input_layouts, strict=True)
    for position, layout in enumerate(choice.output_layouts):
        if layout is not None:
            yield Ref(node.name, position), layout


def _only(axis: int, proposed: Proposed) -> Proposed:
    return tuple(placement if place == axis else None for place, placement in enumerate(proposed))


def _shards(placement: Placement, dim: int) -> bool:
    return is_shard(placement) and placement.dim == dim


def proposal_of(plan: "Plan") -> Proposal | None:
    """What propagation proposes from what a plan was made for; None if that is nothing."""
    if not plan.shardings and not plan.pins:
        return None
    given = PinsAndShardings(plan.mesh, plan.shardings, Pins(plan.mesh, plan.pins))
    return Proposal.of(plan.graph, Layouts(plan.mesh), given, Offers(plan.graph))
