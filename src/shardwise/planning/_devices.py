"""A plan for a number of devices: with the layouts, its mesh is chosen, and whether the model runs in stages.

Meshes with stages are estimated from plans of single parts on the devices of a place, of which alike ones are planned
once, and those that may be the fastest are planned. So are meshes without stages where the model is large; of a small
one each is searched, or excluded by a bound. What became of every mesh is kept with the plan (`candidates`), which
`explain` reads to say why a model does or does not run in stages.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..graph import Graph, reduced_dtype
from ..mesh import Cluster, Mesh
from ..progress import Progress, silent
from ._candidates import Candidate
from ._front import Front, chosen, meshes_of
from ._pipeline import AXIS, Pipeline
from ._pipelining import Cutting, of_pipeline, plan_pipeline, schedules
from ._stage_times import PipelineTime
from ._stages import LARGE, Stages
from ._stretches import Stretches
from ._summary import bytes_text, time_text

if TYPE_CHECKING:
    from ._plan import Plan

NEAR = 1.05  # of the fastest: up to which estimates are followed by a search
SEARCHED = 3  # meshes of one kind, at most
SECONDS, ROUGH = 6.0, 0.02  # of the search for a part: how long, and how near to its best plan
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
    meshes = meshes_of(devices, None)
    staged = _Staged(staged_of, devices, passes, memory, of_planner, of_search, schedule, stages)
    options: dict[str, Any] = {"of_planner": of_planner, "of_search": of_search}
    options |= {"compare": compare, "confirm": confirm}
    best: Plan | Pipeline | None = None
    problem: UsageError | None = None
    found: list[Candidate] = []
    near, waiting = 1.0, staged.estimates(meshes)
    if not any(
        each.estimate and not each.in_stages for each in waiting
    ):  # none is estimated: all are searched
        near = NEAR
        try:
            front = chosen(graph_of, meshes, passes, [memory], **options)
            best = front.best
            found += of_front(front)
        except UsageError as error:
            problem = error
    searched = 0
    for number, estimate in enumerate(waiting):
        least = math.inf if best is None else seconds_of(best) * near
        if estimate.seconds is None or estimate.seconds > least or searched == SEARCHED:
            found += waiting[number:]
            break
        made: Plan | Pipeline
        try:
            if estimate.in_stages:
                made = staged.planned(estimate)
            else:
                made = chosen(graph_of, [Mesh.parse(estimate.mesh)], passes, [memory], **options).best
        except UsageError as error:
            problem = problem or error
            found.append(replace(estimate, seconds=None, why=str(error)))
            continue
        searched += 1
        found.append(_planned(made))
        if best is None or seconds_of(made) < seconds_of(best):
            best = made
    if best is None:
        raise problem or UsageError(
            f"no mesh of {devices} devices is estimated to fit in {bytes_text(memory)} a device; of "
            f"{waiting[0].mesh}: {waiting[0].why}: use more devices, more memory, smaller micro-batches or "
            "recompute='auto', or give a mesh to have it searched"
        )
    if isinstance(best, Pipeline) and confirm:
        best = staged.planned(_planned(best), confirm=True)
    return best.noted(candidates=in_order(found))


def _planned(made: "Plan | Pipeline") -> Candidate:
    schedule, idle = (made.schedule, made.time.bubble) if isinstance(made, Pipeline) else ("", 0.0)
    return Candidate(str(made.mesh), made.micro_batches, seconds_of(made), False, schedule, idle)


def seconds_of(plan: "Plan | Pipeline") -> float:
    return plan.seconds if isinstance(plan, Pipeline) else plan.cost.seconds


def in_order(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The fastest first."""
    return tuple(sorted(candidates, key=_order))


def _order(candidate: Candidate) -> float:
    return math.inf if candidate.seconds is None else candidate.seconds


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
        self._graph_of, self.devices, self.passes, self.memory = graph_of, devices, passes, memory
        self._stretches: dict[int, Stretches] = {}
        self._fits: dict[Cutting, PipelineTime | None] = {}
        self.cluster: Cluster = of_planner["cluster"]
        self.progress: Progress = of_planner.get("progress") or silent
        self.reduce = reduced_dtype(of_planner.get("reduce"))
        options = of_pipeline(of_planner, of_search)
        self.pins, self.of_search = options.pop("pins") or {}, options.pop("of_search")
        self.of_planner: dict[str, Any] = {
            name: options[name] for name in ("optimizer", "zero") if name in options
        }
        self.schedule, self.stages = schedule, stages

    def stretches(self, micro_batches: int) -> Stretches:
        if micro_batches not in self._stretches:
            graph = self._graph_of(micro_batches)
            self._stretches[micro_batches] = Stretches(graph, self.reduce, summed=micro_batches > 1)
        return self._stretches[micro_batches]

    def estimates(self, meshes: Sequence[Mesh]) -> list[Candidate]:
        """Meshes with stages, and of a large model the `meshes` without them, the fastest first.

        Parts are planned with their share of the memory where a step without that limit may be the fastest. More places
        are not looked at where fewer were faster, and fit: every number of them has a graph of its own to capture.
        """
        found: list[Candidate] = []
        waiting: list[tuple[Candidate, Cutting]] = []
        fastest: tuple[Candidate, Cutting] | None = None
        try:
            for places, micro_batches in self._places():
                if (
                    not found
                    and not waiting
                    and len(self.stretches(micro_batches).segments.graph.nodes) > LARGE
                ):
                    alone = [Mesh((AXIS, *mesh.names), (1, *mesh.shape)) for mesh in meshes]
                    self._estimate(alone, micro_batches, found, waiting)
                before = len(waiting)
                self._estimate(list(self._meshes(places)), micro_batches, found, waiting)
                best = min(waiting[before:], key=lambda pair: _order(pair[0]), default=None)
                if fastest is not None and (best is None or _order(best[0]) > _order(fastest[0])):
                    if self._fitted(fastest[1]) is not None:
                        break
                else:
                    fastest = best
        except UsageError as error:  # the model cannot be cut
            return [Candidate(AXIS, self.passes[-1], None, True, self.schedule, why=str(error))]
        waiting.sort(key=lambda pair: _order(pair[0]))
        least = math.inf
        for candidate, cutting in waiting:
            made = candidate
            if _order(candidate) <= least * NEAR:
                time = self._fitted(cutting)
                if time is None:
                    made = replace(
                        candidate,
                        seconds=None,
                        why=f"no plans of its parts were found that fit in {bytes_text(self.memory)}",
                    )
                else:
                    made = replace(candidate, seconds=time.seconds, idle=time.bubble)
                    least = min(least, time.seconds)
            found.append(made)
        return _best_of_meshes(found)

    def _estimate(
        self,
        meshes: Sequence[Mesh],
        micro_batches: int,
        found: list[Candidate],
        waiting: list[tuple[Candidate, Cutting]],
    ) -> None:
        """Add what a step takes on meshes to those that wait to be fitted into the memory, or to what is known."""
        for number, mesh in enumerate(meshes):
            self.progress("meshes", number, len(meshes), note=str(mesh))
            for candidate, cutting in self._free(mesh, micro_batches):
                if cutting is None:
                    found.append(candidate)
                else:
                    waiting.append((candidate, cutting))

    def _fitted(self, cutting: Cutting) -> PipelineTime | None:
        """What a step takes within the memory; None if it was not found to fit."""
        if cutting not in self._fits:
            self._fits[cutting] = cutting.fitting()
        return self._fits[cutting]

    def planned(self, candidate: Candidate, confirm: bool = False) -> Pipeline:
        return plan_pipeline(
            self.stretches(candidate.micro_batches),
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

    def _places(self) -> Iterator[tuple[int, int]]:
        """How many places there may be, and in how many passes."""
        for places in (number for number in range(2, self.devices + 1) if self.devices % number == 0):
            enough = [number for number in self.passes if number >= places]
            if not enough:
                continue
            micro_batches = next((number for number in enough if number >= FILLED * places), enough[-1])
            known = next(iter(self._stretches), micro_batches)  # parts are the same for all numbers of passes
            if places > len(self.stretches(known)):
                break
            yield places, micro_batches

    def _meshes(self, places: int) -> Iterator[Mesh]:
        """Stages of one or two axes each, of which the inner one stays in an island."""
        size, inner = self.cluster.levels[0].size or self.devices, self.devices // places
        yield Mesh.parse(f"{AXIS}={places}" + (f",dp={inner}" if inner > 1 else ""))
        for tp in range(2, min(inner, size + 1)):
            if inner % tp == 0:
                yield Mesh.parse(f"{AXIS}={places},dp={inner // tp},tp={tp}")

    def _free(self, mesh: Mesh, micro_batches: int) -> Iterator[tuple[Candidate, Cutting | None]]:
        """What a step takes by each schedule, whatever it holds; without a cut where there is none, and why."""
        staged = mesh[AXIS] > 1
        inner = Mesh(mesh.names[1:], mesh.shape[1:]) if not staged else mesh
        options = schedules(self.schedule, self.stages) if staged else (("1F1B", 1),)
        limits = {
            "time_limit": min(SECONDS, self.of_search.get("time_limit", SECONDS)),
            "gap": max(ROUGH, self.of_search.get("gap", ROUGH)),
        }
        parts: Stages | None = None
        for name, each in options:
            shown = Candidate(str(inner), micro_batches, None, True, name if staged else "")
            try:
                parts = parts or Stages(
                    *(self.stretches(micro_batches), mesh, self.cluster),
                    memory=self.memory,
                    pins=self.pins,
                    of_planner={**self.of_planner, "micro_batches": micro_batches},
                    of_search={**self.of_search, **limits},
                    large=FEW,
                )
                cutting = Cutting(parts, name, each * mesh[AXIS], micro_batches)
                time = cutting.estimated()
            except UsageError as error:
                yield replace(shown, why=str(error)), None
            else:
                idle = time.bubble if staged else 0.0
                yield replace(shown, seconds=time.seconds, idle=idle), cutting


def _best_of_meshes(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The fastest of each mesh, in order."""
    best: dict[str, Candidate] = {}
    for each in sorted(candidates, key=_order):
        best.setdefault(each.mesh, each)
    return list(best.values())


def of_front(front: Front | None) -> Iterator[Candidate]:
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
        return (
            f"{begin}; no mesh {kind} was considered: stages need as many micro-batches as places, and none of the "
            "options that are for plans without stages"
        )
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
