"""Plans of the stages of one graph: of any stretch of its parts, with so many micro-batches in flight.

What crosses a boundary has one layout, whichever stages meet there, and so has a parameter that several parts use:
that of a plan of the whole graph, or for large ones, of its first parts. So stages can be planned one by one, and
stages that are alike are planned once.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..errors import UsageError
from ..experiments import Confirmations
from ..graph import Crossing, Graph, Ref, TensorInfo, named_tensors
from ..layout import Layout
from ..mesh import Cluster, Link, Mesh
from ..placements import is_partial
from ._alike import moved_to
from ._pins import Pin, Pins, exactly
from ._pipeline import AXIS, inner_mesh
from ._plan import Plan
from ._planner import Planner
from ._prices import OptimizerCost
from ._search import DoesNotFit
from ._stretches import Stretches

LARGE = 5_000  # calls, above which layouts at boundaries are those of a plan of the first parts
_UNLIMITED = 2**62


class Stages:
    """The stages that a graph with boundaries can be cut into, and their plans on a mesh without `pp`."""

    def __init__(
        self,
        stretches: Stretches,
        mesh: Mesh,
        cluster: Cluster,
        *,
        memory: int,
        pins: Mapping[str, Pin],
        of_planner: Mapping[str, Any],
        of_search: Mapping[str, Any],
        large: int = LARGE,
    ) -> None:
        self.large = large
        self.graph, self.segments = stretches.graph, stretches.segments
        self.stretches, self.mesh, self.inner = stretches, mesh, inner_mesh(mesh)
        self.memory, self.pins = memory, pins
        self.cluster = _links_of(mesh, cluster)
        self.of_planner, self.of_search = of_planner, of_search
        self._planners: dict[Hashable, Planner] = {}
        self._of_planner: dict[Hashable, tuple[int, int]] = {}  # the stage that each plans
        self._plans: dict[Hashable, Plan | None] = {}
        self._signatures: dict[tuple[int, int], Hashable] = {}
        if pins:
            Pins(self.inner, pins).require_all_used(self.segments.whole)

    def __len__(self) -> int:
        """The number of parts."""
        return len(self.segments)

    def plan(self, begin: int, end: int, in_flight: int, share: float = 1.0) -> Plan | None:
        """The cheapest plan of a stage within a share of the memory; None if none fits."""
        graph, limit = self.graph(begin, end), int(self.memory * share)
        if self._least_state(graph) > limit:
            return None
        found: Plan | None = replace(self.free_plan(begin, end), in_flight=in_flight)
        if found is not None and found.cost.peak > limit:
            key = self.alike(begin, end), in_flight, limit
            if key not in self._plans:
                self._plans[key] = self._planned(begin, end, in_flight, limit)
            found = self._plans[key]
        if found is None:
            return None
        texts = Pins(self.inner, self.pins_of(begin, end)).texts
        own = found if found.pins == texts else moved_to(found, graph, texts)
        return own.noted(memory=limit)

    def free_plan(self, begin: int, end: int) -> Plan:
        """The cheapest plan of a stage, whatever memory it takes; of another that is alike, if that was planned."""
        key = self.alike(begin, end), 1, _UNLIMITED
        if key not in self._plans:
            self._plans[key] = self._planned(begin, end, 1, _UNLIMITED)
        found = self._plans[key]
        assert found is not None
        return found

    def _least_state(self, graph: Graph) -> int:
        """Bytes that parameters and states of the optimizer take at least, however they are sharded."""
        optimizer = OptimizerCost.of(self.of_planner.get("optimizer", "adam"))
        parts = (
            TensorInfo((-(-entry.tensor.numel // self.inner.ranks),), entry.tensor.dtype)
            for entry in graph.with_role("parameter")
            if entry.trainable
        )
        return sum(part.bytes + optimizer.state_bytes(part) for part in parts)

    def _planned(self, begin: int, end: int, in_flight: int, limit: int) -> Plan | None:
        key = self.alike(begin, end), in_flight
        if key not in self._planners:
            self._planners[key] = Planner(
                *(self.graph(begin, end), self.inner, self.cluster),
                in_flight=in_flight,
                memory=_UNLIMITED,
                **self.of_planner,
            )
        planner = self._planners[key]
        try:
            return planner.within(limit).plan(
                self.pins_of(*self._of_planner.setdefault(key, (begin, end))), compare=False, **self.of_search
            )
        except DoesNotFit:
            return None

    def confirmed(self, plan: Plan, begin: int, end: int, confirmations: Confirmations) -> Plan:
        """The plan of a stage once experiments have confirmed its calls."""
        pins = self.pins_of(begin, end)
        planner = Planner(
            *(self.graph(begin, end), self.inner, self.cluster),
            in_flight=plan.in_flight,
            memory=plan.memory,
            **self.of_planner,
        )
        return planner.plan(
            pins, compare=False, confirm=True, confirmations=confirmations, known=plan, **self.of_search
        )

    def alike(self, begin: int, end: int) -> Hashable:
        """The same for stretches that one plan is found for."""
        if (begin, end) not in self._signatures:
            graph, pins = self.graph(begin, end), self.pins_of(begin, end)
            named = [name for name, _ in named_tensors(graph) if name.kind != "node"]
            layouts = [
                (place, str(pin))
                for place, name in enumerate(named)
                for pattern, pin in pins.items()
                if name.matches(pattern)
            ]
            self._signatures[begin, end] = hash((self.stretches.signature(begin, end), tuple(layouts)))
        return self._signatures[begin, end]

    # -- what stages agree on

    def pins_of(self, begin: int, end: int) -> dict[str, Pin]:
        """The layouts that a stage shares with others, and the user's pins that speak of it."""
        graph = self.graph(begin, end)
        found = self._own_pins(graph)
        for kind, number in (("input", begin), ("output", end)):
            for crossing in self.segments.crossings.get(number, ()):
                found[f"{kind}:{crossing.name}"] = self.borders[crossing.name]
        own = {entry.target for entry in graph.with_role("parameter")}
        return found | {exactly(name): layout for name, layout in self.shared.items() if name in own}

    @cached_property
    def borders(self) -> dict[str, Layout]:
        """The layout of what crosses each boundary, by the name of its mark."""
        plan, found = self._reference, dict[str, Layout]()
        known: dict[Hashable, Layout] = {}  # by shape, for boundaries beyond the reference
        for crossings in self.segments.crossings.values():
            for place, crossing in enumerate(crossings):
                ref = self._source(crossing)
                kinds = (crossing.tensor, place), (crossing.tensor,)
                if ref.name in plan.graph.makers:
                    found[crossing.name] = _whole_layout(plan, ref)
                    known |= dict.fromkeys(kinds, found[crossing.name])
                else:
                    layouts = [known[kind] for kind in kinds if kind in known]
                    found[crossing.name] = (layouts or [Layout.replicated(self.inner)])[0]
        return found

    @cached_property
    def shared(self) -> dict[str, Layout]:
        """The layouts of parameters that several parts use, by name."""
        uses: dict[str, set[int]] = {}
        for node in self.segments.graph.nodes:
            part = self.segments.of[node.name]
            for ref in node.inputs:
                if part is not None:
                    uses.setdefault(ref.name, set()).add(part)
        plan, found = self._reference, dict[str, Layout]()
        for entry in self.segments.graph.with_role("parameter"):
            if len(uses.get(entry.name, ())) > 1:
                layout = plan.home(entry.name) if entry.name in plan.inputs else None
                found[entry.target] = layout or Layout.replicated(self.inner)
        return found

    @cached_property
    def _reference(self) -> Plan:
        """A plan of the whole graph, or of its first parts, without the limits of stages."""
        parts = len(self)
        while parts > 2 and len(self.graph(0, parts).nodes) > self.large:
            parts //= 2
        graph = self.graph(0, parts)
        planner = Planner(graph, self.inner, self.cluster, memory=_UNLIMITED, **self.of_planner)
        return planner.plan(self._own_pins(graph), compare=False, **self.of_search)

    def _own_pins(self, graph: Graph) -> dict[str, Pin]:
        """The user's pins that speak of a stage."""
        return {
            pattern: pin
            for pattern, pin in self.pins.items()
            if any(name.matches(pattern) for name, _ in named_tensors(graph))
        }

    def _source(self, crossing: Crossing) -> Ref:
        """What a mark passes on: a tensor of the graph without marks."""
        ref = crossing.mark.inputs[0]
        while ref.name in self._marks:
            ref = self._marks[ref.name].mark.inputs[0]
        return ref

    @cached_property
    def _marks(self) -> dict[str, Crossing]:
        return {c.name: c for crossings in self.segments.crossings.values() for c in crossings}


def _whole_layout(plan: Plan, ref: Ref) -> Layout:
    """The layout in which a tensor is made, or where it is partial, that in which it is used first."""
    layouts = [plan.layout(ref)]
    for user in plan.graph.users.get(ref, ()):
        wanted = plan.choices[user.name].input_layouts
        layouts += [layout for given, layout in zip(user.inputs, wanted, strict=True) if given == ref]
    for layout in layouts:
        if not any(map(is_partial, layout.placements)):
            return layout
    return Layout.replicated(plan.mesh)


def _links_of(mesh: Mesh, cluster: Cluster) -> Cluster:
    """The cluster as one stage sees it: axes inside of `pp` have the links that they have in the whole mesh."""
    if mesh.names[0] == AXIS:
        return cluster
    links = {name: cluster.link(mesh, name) for name in mesh.names if name != AXIS}
    for name, link in links.items():
        if not isinstance(link, Link):
            raise UsageError(
                f"mesh {mesh} puts some ranks of {name} into one island: make {AXIS} its first axis"
            )
    return cluster.with_axes(**links)  # type: ignore[arg-type]
