"""A plan for a number of devices: with the layouts, its mesh is chosen, and whether the model runs in stages.

Meshes with stages are estimated from plans of single parts on the devices of a place, of which alike ones are planned
once, and those that may be the fastest are planned. So are meshes without stages where the model is large; of a small
one each is searched, or excluded by a bound. What became of every mesh is kept with the plan (`candidates`), which
`explain` reads to say why a model does or does not run in stages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..graph import Graph, Segments
from ..mesh import Cluster, Mesh
from ..progress import Progress, silent
from ._candidates import Candidate
from ._front import Front, chosen, meshes_of
from ._pipeline import AXIS, Pipeline
from ._pipelining import Cutting, plan_pipeline, schedules
from ._stages import LARGE, Stages
from ._summary import bytes_text, time_text

if TYPE_CHECKING:
    from ._plan import Plan

NEAR = 1.05  # of the fastest: up to which estimates are followed by a search
SEARCHED = 3  # meshes of one kind, at most
SECONDS = 5.0  # of the search for a part
FEW = 1_000  # calls of the parts from which layouts at boundaries are estimated
FILLED = 4  # micro-batches for each place, where their number can be chosen


def plan_devices(
    graph_of: Callable[[int], Graph],
    staged_of: Callable[[int], Graph],
    devices: int,
    passes: Sequence[int],
    *,
    memory: int,
    of_planner: Mapping[str, Any],
    of_search: Mapping[str, Any],
    schedule: str = "1F1B",
    stages: int | None = None,
    compare: bool = False,
    confirm: bool = False,
) -> "Plan | Pipeline":
    """The fastest plan on so many devices, with or without stages; the graphs of a pass by the number of passes are
    given as they are and with boundaries, other options as for `chosen` and `plan_pipeline`."""
    staged = _Staged(staged_of, devices, passes, memory, of_planner, of_search, schedule, stages)
    pipelines = staged.estimates()
    meshes, excluded = staged.worth_searching(meshes_of(devices, None), pipelines)
    best: Plan | Pipeline | None = None
    problem: UsageError | None = None
    front: Front | None = None
    if meshes:
        try:
            front = chosen(
                *(graph_of, meshes, passes, [memory]),
                of_planner=of_planner,
                of_search=of_search,
                compare=compare,
                confirm=confirm,
            )
            best = front.best
        except UsageError as error:
            problem = error
    found: list[Candidate] = []
    for number, estimate in enumerate(pipelines):
        least = float("inf") if best is None else seconds_of(best) * NEAR
        if estimate.seconds is None or estimate.seconds > least or number == SEARCHED:
            found += pipelines[number:]
            break
        try:
            made = staged.planned(estimate)
        except UsageError as error:
            problem = problem or error
            found.append(replace(estimate, seconds=None, why=str(error)))
            continue
        found.append(replace(estimate, seconds=made.seconds, estimate=False, idle=made.time.bubble))
        if best is None or made.seconds < seconds_of(best):
            best = made
    if best is None:
        assert problem is not None
        raise problem
    if isinstance(best, Pipeline) and confirm:
        best = staged.planned(staged.candidate(best), confirm=True)
    plain = [*excluded, *_of_front(front)] if problem is None or front else [*excluded]
    return best.noted(candidates=tuple(sorted([*plain, *found], key=_order)))


def seconds_of(plan: "Plan | Pipeline") -> float:
    return plan.seconds if isinstance(plan, Pipeline) else plan.cost.seconds


def _order(candidate: Candidate) -> float:
    return float("inf") if candidate.seconds is None else candidate.seconds


class _Staged:
    """Meshes with stages on a number of devices."""

    def __init__(
        self,
        graph_of: Callable[[int], Graph],
        devices: int,
        passes: Sequence[int],
        memory: int,
        of_planner: Mapping[str, Any],
        of_search: Mapping[str, Any],
        schedule: str,
        stages: int | None,
    ) -> None:
        self.graph_of, self.devices, self.passes, self.memory = graph_of, devices, passes, memory
        self.cluster: Cluster = of_planner["cluster"]
        self.progress: Progress = of_planner.get("progress") or silent
        self.of_planner = {name: of_planner[name] for name in ("optimizer", "zero") if name in of_planner}
        self.pins = of_search.get("pins", {})
        self.of_search = {name: value for name, value in of_search.items() if name in _OF_STAGES}
        self.schedule, self.stages = schedule, stages

    def estimates(self) -> list[Candidate]:
        """Every mesh with stages, the fastest first."""
        found = []
        try:
            meshes = list(self._meshes())
        except UsageError as error:  # the model cannot be cut
            return [Candidate(AXIS, self.passes[-1], None, True, self.schedule, why=str(error))]
        for number, (mesh, micro_batches) in enumerate(meshes):
            self.progress("meshes", number, len(meshes), note=str(mesh))
            found.append(self._estimate(mesh, micro_batches))
        return sorted(found, key=_order)

    def worth_searching(
        self, meshes: list[Mesh], pipelines: Sequence[Candidate]
    ) -> tuple[list[Mesh], list[Candidate]]:
        """The meshes without stages that may be the fastest: all of a small model; and estimates of the others."""
        known = [each for each in pipelines if each.seconds is not None]
        if not known or len(self.graph_of(known[0].micro_batches).nodes) <= LARGE:
            return meshes, []
        micro_batches = known[0].micro_batches
        estimates = {}
        for number, mesh in enumerate(meshes):
            self.progress("meshes", number, len(meshes), note=str(mesh))
            alone = Mesh((AXIS, *mesh.names), (1, *mesh.shape))
            estimates[mesh] = replace(
                self._estimate(alone, micro_batches), mesh=str(mesh), schedule="", idle=0.0
            )
        least = min(each.seconds for each in (*estimates.values(), *pipelines) if each.seconds is not None)
        near = [mesh for mesh, each in estimates.items() if each.seconds and each.seconds <= least * NEAR]
        taken = sorted(near, key=lambda mesh: _order(estimates[mesh]))[:SEARCHED]
        return taken, [each for mesh, each in estimates.items() if mesh not in taken]

    def planned(self, candidate: Candidate, confirm: bool = False) -> Pipeline:
        return plan_pipeline(
            self.graph_of(candidate.micro_batches),
            mesh=Mesh.parse(candidate.mesh),
            cluster=self.cluster,
            memory=self.memory,
            micro_batches=candidate.micro_batches,
            schedule=candidate.schedule,
            stages=self.stages,
            pins=self.pins,
            of_search=self.of_search,
            confirm=confirm,
            progress=self.progress,
            **self.of_planner,
        )

    def candidate(self, made: Pipeline) -> Candidate:
        return Candidate(str(made.mesh), made.micro_batches, made.seconds, False, made.schedule)

    def _meshes(self) -> Iterator[tuple[Mesh, int]]:
        """Stages of one or two axes each, of which the inner one stays in an island, and in how many passes."""
        size = self.cluster.levels[0].size or self.devices
        for places in (number for number in range(2, self.devices + 1) if self.devices % number == 0):
            enough = [number for number in self.passes if number >= places]
            if not enough:
                continue
            micro_batches = next((number for number in enough if number >= FILLED * places), enough[-1])
            if places > len(Segments(self.graph_of(micro_batches))):
                break
            inner = self.devices // places
            yield Mesh.parse(f"{AXIS}={places}" + (f",dp={inner}" if inner > 1 else "")), micro_batches
            for tp in range(2, min(inner, size + 1)):
                if inner % tp == 0:
                    yield Mesh.parse(f"{AXIS}={places},dp={inner // tp},tp={tp}"), micro_batches

    def _estimate(self, mesh: Mesh, micro_batches: int) -> Candidate:
        try:
            parts = Stages(
                *(self.graph_of(micro_batches), mesh, self.cluster),
                memory=self.memory,
                pins=self.pins,
                of_planner={**self.of_planner, "micro_batches": micro_batches},
                of_search={
                    **self.of_search,
                    "time_limit": min(SECONDS, self.of_search.get("time_limit", SECONDS)),
                },
                large=FEW,
            )
        except UsageError as error:
            return Candidate(str(mesh), micro_batches, None, True, self.schedule, why=str(error))
        options = (("1F1B", 1),) if mesh[AXIS] == 1 else schedules(self.schedule, self.stages)
        found: list[Candidate] = []
        for name, each in options:
            try:
                time = Cutting(parts, name, each * mesh[AXIS], micro_batches).estimated()
            except UsageError as error:
                found.append(Candidate(str(mesh), micro_batches, None, True, name, why=str(error)))
                continue
            if time is None:
                why = f"parts do not fit in {bytes_text(self.memory)}"
                found.append(Candidate(str(mesh), micro_batches, None, True, name, why=why))
            else:
                found.append(Candidate(str(mesh), micro_batches, time.seconds, True, name, time.bubble))
        return min(found, key=_order)


_OF_STAGES = ("share_layers", "gap", "time_limit")


def _of_front(front: Front | None) -> Iterator[Candidate]:
    """What became of meshes without stages."""
    for each in () if front is None else front.tried:
        seconds = each.bound or None if each.plan is None else each.plan.cost.seconds
        why = "" if each.plan is not None else each.why or "no plan is faster than this"
        yield Candidate(str(each.setup.mesh), each.setup.micro_batches, seconds, each.plan is None, why=why)


# -- in words


def why_stages(plan: "Plan | Pipeline") -> str:
    """Why a model does or does not run in stages, by the meshes that were considered."""
    own, seconds = str(plan.mesh), seconds_of(plan)
    if not plan.candidates:
        return (
            f"{AXIS}: mesh {own} was given, and no other was considered; with devices={plan.mesh.ranks} and "
            "micro-batches, meshes with and without stages are compared"
        )
    staged = isinstance(plan, Pipeline)
    others = [each for each in plan.candidates if each.in_stages is not staged]
    kind = "without stages" if staged else "in stages"
    known = [each for each in others if each.seconds is not None]
    begin = f"{AXIS}: {own} takes {time_text(seconds)} a step" + (
        f", of which devices are idle {plan.time.bubble:.1%}" if isinstance(plan, Pipeline) else ""
    )
    if not others:
        return f"{begin}; no mesh {kind} was considered: a pipeline needs as many micro-batches as places"
    if not known:
        return f"{begin}; of {len(others)} meshes {kind} none fits: {others[0].mesh}: {others[0].why}"
    other = min(known, key=_order)
    assert other.seconds is not None
    text = f"{begin}; the fastest of {len(known)} meshes {kind}, {other.mesh}"
    text += f" by {other.schedule}," if other.schedule else ","
    text += f" takes {'about ' if other.estimate else ''}{time_text(other.seconds)}"
    if other.in_stages:
        busy = other.seconds * (1 - other.idle)
        text += (
            f" with {other.micro_batches} micro-batches: its devices compute and communicate for {time_text(busy)} "
            f"and wait for other stages {other.idle:.1%} of the time"
        )
    return text
