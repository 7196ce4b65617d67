"""`Pipeline`: a plan in stages, each a plan of a stretch of the graph on the devices of one place of the axis `pp`.

Micro-batches flow through the stages by one of torch's schedules. A step takes as long as that schedule simulated, with
the seconds of the stages' plans and of what crosses between them; a device holds its stages' states, and what they keep
for all micro-batches in flight.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..display import Bar, Bars, Block, Heading, Lane, Lanes, Shown, Table
from ..dtensor import Action, pipeline_actions, stage_ranks
from ..files import path_of
from ..graph import block_of
from ..layout import Layout
from ..mesh import Cluster, Mesh
from ._candidates import AXIS, Candidate, candidates_blocks
from ._plan import Plan
from ._stage_costs import StageMemory, held_bytes, most_in_flight, sent, stage_time
from ._stage_times import PipelineTime, StageTime, simulated
from ._summary import bytes_text, time_text


def inner_mesh(mesh: Mesh) -> Mesh:
    """The mesh on which one stage runs."""
    axes = {name: size for name, size in zip(mesh.names, mesh.shape, strict=True) if name != AXIS}
    return Mesh(tuple(axes), tuple(axes.values())) if axes else Mesh(("dp",), (1,))


@dataclass(frozen=True)
class Pipeline(Shown):
    """A model in stages: stage i has the parts of its graph from `cuts[i]` to before `cuts[i + 1]`, and `stages[i]` is
    their plan on the mesh without `pp`.

    What crosses from a stage to the next has the same layout on both sides, and so has a parameter that several stages
    use. `memory` are the bytes that a device may use. No cut takes less than `bound` seconds with the plans that were
    found for stages, given the layouts of what crosses; None where that is not known. `candidates` are the meshes among
    which this one was chosen.
    """

    name: str
    mesh: Mesh
    cluster: Cluster
    schedule: str
    micro_batches: int
    cuts: tuple[int, ...]
    stages: tuple[Plan, ...]
    memory: int | None = None
    bound: float | None = None
    candidates: tuple[Candidate, ...] = ()

    @property
    def places(self) -> int:
        """The number of places along `pp`."""
        return self.mesh[AXIS]

    @cached_property
    def place_of_stage(self) -> tuple[int, ...]:
        return stage_ranks(self.schedule, self.places, len(self.stages))

    @cached_property
    def actions(self) -> tuple[tuple[Action, ...], ...]:
        """What each place along `pp` computes, in order."""
        return pipeline_actions(self.schedule, self.places, len(self.stages), self.micro_batches)

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of parameters are computed after those that the stage before waits for."""
        return any(action.kind == "weight" for actions in self.actions for action in actions)

    @cached_property
    def times(self) -> tuple[StageTime, ...]:
        link, last = self.cluster.link(self.mesh, AXIS), len(self.stages) - 1
        return tuple(
            stage_time(plan, last=number == last, send=lambda size: link.time("permute", size, 2))
            for number, plan in enumerate(self.stages)
        )

    @cached_property
    def time(self) -> PipelineTime:
        """When each place computes what."""
        return simulated(self.actions, self.place_of_stage, self.times)

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.time.seconds

    @cached_property
    def held(self) -> tuple[int, ...]:
        """The most bytes that a device holds, of each place along `pp`."""
        memory = [StageMemory.of(plan) for plan in self.stages]
        return tuple(
            held_bytes(self.actions[place], {n: memory[n] for n in self.stages_at(place)})
            for place in range(self.places)
        )

    def stages_at(self, place: int) -> list[int]:
        """The numbers of the stages of a place along `pp`."""
        return [number for number, own in enumerate(self.place_of_stage) if own == place]

    @property
    def peak(self) -> int:
        return max(self.held)

    def __repr__(self) -> str:
        return f"<Pipeline of {self.name} on {self.mesh} of {self.cluster.name}: {len(self.stages)} stages>"

    def blocks(self) -> Iterator[Block]:
        yield Heading(
            1, f"{self.name} on mesh {self.mesh} of {self.cluster.name}: {time_text(self.seconds)} a step"
        )
        proven = "" if self.bound is None else f"; no cut takes less than {time_text(self.bound)}"
        yield (
            f"{len(self.stages)} stages by {self.schedule}, {self.micro_batches} micro-batches; devices are idle "
            f"{self.time.bubble:.1%} of the time{proven}"
        )
        in_flight = [most_in_flight(actions) for actions in self.actions]
        yield Table(
            ("stage", "at", "parts", ">forward", ">backward", ">sends", ">in flight", ">computed again"),
            [
                (
                    str(number),
                    f"{AXIS}={place}",
                    _parts(plan),
                    time_text(time.forward),
                    time_text(time.input + time.weight),
                    bytes_text(
                        sum(tensor.bytes for tensor in sent(plan)) if number + 1 < len(self.stages) else 0
                    ),
                    str(in_flight[place][number]),
                    f"{len(plan.graph.again)} calls",
                )
                for number, (plan, time, place) in enumerate(
                    zip(self.stages, self.times, self.place_of_stage, strict=True)
                )
            ],
        )
        yield Heading(2, f"a step of each place along {AXIS}")
        yield self._lanes()
        limit = "" if self.memory is None else f" of {bytes_text(self.memory)}"
        yield Heading(2, f"memory{limit} a device")
        most = max(self.memory or 0, self.peak)
        yield Bars(
            tuple(Bar(f"{AXIS}={n}", bytes_text(held), held / most) for n, held in enumerate(self.held))
        )
        yield from candidates_blocks(self.candidates)

    def _lanes(self) -> Lanes:
        """What each place computes over a step."""
        return Lanes(
            tuple(
                Lane(
                    f"{AXIS}={place}",
                    tuple((s.begin / self.seconds, s.end / self.seconds, s.action.kind) for s in spans),
                )
                for place, spans in enumerate(self.time.spans)
            ),
            f"idle {self.time.bubble:.1%} of {time_text(self.seconds)}",
        )

    def noted(self, **notes: Any) -> "Pipeline":
        """The same pipeline with other notes on how it was found."""
        return replace(self, **notes)

    def explain(self, place: str) -> str:
        """The choice for a node, a module or a parameter of a stage, and its runner-up; of `pp`, why the model runs in
        stages."""
        from ._explain import explain_stages

        return explain_stages(self, place)

    def to_json(self) -> dict[str, Any]:
        from ._pipeline_json import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, document: Any) -> "Pipeline":
        from ._pipeline_json import from_json

        return from_json(document)

    def save(self, path: str | Path) -> None:
        from ._pipeline_json import save

        save(self, path_of(path))

    @classmethod
    def load(cls, path: str | Path) -> "Pipeline":
        from ._pipeline_json import load

        return load(path_of(path))


def joined(stages: Sequence[Plan]) -> tuple[Plan, ...]:
    """Plans of stages that agree: what crosses is given as it is taken, and returned so, and a parameter of several
    stages has the layout that it has in the first."""
    found: list[Plan] = []
    homes: dict[str, Layout] = {}
    for number, plan in enumerate(stages):
        inputs = dict(plan.inputs)
        after = stages[number + 1] if number + 1 < len(stages) else None
        taken = (
            {}
            if after is None
            else {e.target: after.inputs[e.name] for e in after.graph.with_role("user_input")}
        )
        for entry in plan.graph.inputs:
            if entry.role == "parameter":
                inputs[entry.name] = homes.setdefault(entry.target, inputs[entry.name])
            elif entry.role == "tangent" and entry.target in taken:
                inputs[entry.name] = taken[entry.target]
        held = {entry.target: inputs[entry.name] for entry in plan.graph.inputs if entry.role != "tangent"}
        outputs = [
            layout and (held if output.role == "gradient" else taken).get(output.target, layout)
            for output, layout in zip(plan.graph.outputs, plan.outputs, strict=True)
        ]
        found.append(replace(plan, inputs=inputs, outputs=tuple(outputs)))
    return tuple(found)


def _parts(plan: Plan) -> str:
    """The first and the last module of a stage that has parameters."""
    modules = [entry.target.rpartition(".")[0] for entry in plan.graph.with_role("parameter")]
    named = [block_of(module) or module for module in modules] or [""]
    return named[0] if named[0] == named[-1] else f"{named[0]} to {named[-1]}"
