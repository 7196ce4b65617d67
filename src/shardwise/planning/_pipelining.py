"""From a graph with boundaries to a `Pipeline`: where it is cut into stages, by which schedule, and their plans.

Every stretch of parts that a stage may have is planned where they are few: the cut that is found is then the best of
all. Of more parts each is planned by itself, alike ones once, and their times are added up; the stages of the best cut
are planned, and it is chosen anew with what they take, until it is the best by the plans of its stages.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..dtensor import SCHEDULES, pipeline_actions, stage_ranks
from ..errors import UsageError, require
from ..experiments import Confirmations
from ..graph import Graph, reduced_dtype
from ..mesh import Cluster, Mesh
from ..progress import Progress, silent
from ._cuts import Cuts, best_cuts
from ._pins import Pin
from ._pipeline import AXIS, Pipeline
from ._plan import Plan
from ._stage_costs import StageMemory, held_bytes, most_in_flight, stage_time, together
from ._stage_times import PipelineTime, StageTime, simulated
from ._stages import Stages
from ._stretches import Stretches
from ._summary import bytes_text

EVERY = 8  # parts up to which every stretch of them is planned
PLANNED = 6  # cuts of more parts that are planned
TIGHTENED = 6  # times that parts are planned to hold less
LITTLE = 0.02  # of the memory, below which parts that are alike need not
CLOSE, STEPS = 0.005, 500  # of the search among them: how near to the best, and how long

# What is tried where no schedule is given, each with its stages per place.
AUTO = (("1F1B", 1), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2))


def plan_pipeline(
    graph: Graph | Stretches,
    *,
    mesh: Mesh,
    cluster: Cluster,
    memory: int,
    optimizer: str = "adam",
    micro_batches: int = 1,
    schedule: str = "1F1B",
    stages: int | None = None,
    zero: bool = False,
    reduce: str | None = None,
    pins: Mapping[str, Pin] | None = None,
    of_search: Mapping[str, Any] | None = None,
    confirm: bool = True,
    progress: Progress | None = None,
) -> Pipeline:
    """The fastest pipeline of a graph that was captured with boundaries, on a mesh with the axis `pp`.

    `schedule` is one of torch's, or `auto`; there are so many `stages` at each place along `pp`, by default one, or two
    where the schedule has several.
    """
    require(schedule, str, "schedule", f"one of {', '.join(SCHEDULES)}, or 'auto'")
    tell = progress or silent
    stretches = (
        graph
        if isinstance(graph, Stretches)
        else Stretches(graph, reduced_dtype(reduce), summed=micro_batches > 1)
    )
    planner = Stages(
        *(stretches, mesh, cluster),
        memory=memory,
        pins=pins or {},
        of_planner={
            "optimizer": optimizer,
            "micro_batches": micro_batches,
            "zero": zero,
            "progress": progress,
        },
        of_search=_of_each(of_search or {}, mesh[AXIS] if len(stretches) > EVERY else 1),
    )
    options = schedules(schedule, stages)
    found: list[Pipeline] = []
    problems: list[UsageError] = []
    for number, (name, each) in enumerate(options):
        tell("stages", number, len(options), note=name)
        try:
            found.append(Cutting(planner, name, each * mesh[AXIS], micro_batches, tell).best())
        except UsageError as error:
            problems.append(error)
    if not found:
        raise problems[0]
    best = min(found, key=lambda pipeline: pipeline.seconds)
    return _confirmed(best, planner) if confirm else best


def _of_each(of_search: Mapping[str, Any], stages: int) -> dict[str, Any]:
    """What each search has where the stages of a cut share the time that is given for a plan."""
    found = dict(of_search)
    if "time_limit" in found:
        found["time_limit"] /= stages
    return found


def of_pipeline(of_planner: Mapping[str, Any], of_search: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a planner and of its searches as those of `plan_pipeline`."""
    names = "cluster", "optimizer", "zero", "reduce", "progress"
    found = {name: of_planner[name] for name in names if name in of_planner}
    limits = {name: of_search[name] for name in ("share_layers", "gap", "time_limit") if name in of_search}
    return {**found, "pins": of_search.get("pins"), "of_search": limits}


def schedules(schedule: str, stages: int | None) -> tuple[tuple[str, int], ...]:
    """The schedules that are tried, each with its stages per place."""
    if schedule == "auto":
        return tuple((name, stages or each) for name, each in AUTO)
    return ((schedule, stages or (1 if schedule in ("1F1B", "GPipe") else 2)),)


class Cutting:
    """The cut of a graph into a number of stages that run by a schedule."""

    def __init__(
        self, planner: Stages, schedule: str, stages: int, micro_batches: int, progress: Progress = silent
    ) -> None:
        self.planner, self.schedule, self.stages = planner, schedule, stages
        self.micro_batches, self.progress = micro_batches, progress
        self.places = planner.mesh[AXIS]
        if stages > len(planner):
            name = planner.segments.graph.name
            alone = ", or a schedule with one stage at each place, such as 1F1B"
            raise UsageError(
                f"{name} has {len(planner)} parts between which it can be cut, fewer than {stages} stages: "
                f"use a smaller {AXIS}{alone if stages > self.places else ''}"
            )
        self.place_of_stage = stage_ranks(schedule, self.places, stages)
        self.actions = pipeline_actions(schedule, self.places, stages, micro_batches)
        counts = [most_in_flight(actions) for actions in self.actions]
        self.in_flight = [counts[place][stage] for stage, place in enumerate(self.place_of_stage)]
        # Stages of one place share its memory.
        self.share = self.places / stages
        self.known: dict[tuple[int, int, int], StageTime | None] = {}
        # Of parts, by what those that are alike have in common.
        self.parts: dict[Hashable, Plan] = {}
        self.times: dict[Hashable, StageTime] = {}
        self.memory: dict[Hashable, StageMemory] = {}

    def best(self) -> Pipeline:
        if len(self.planner) <= EVERY:
            cut = self._cut(self._cost, gap=0.0, most=None)
            if cut is None:
                raise UsageError(self._refusal())
            return replace(self._made(cut.cuts), bound=cut.bound)
        found: dict[tuple[int, ...], Pipeline] = {}
        for _ in range(PLANNED):
            cut = self._cut(self._known_or_estimated, gap=CLOSE, most=STEPS)
            if cut is None or cut.cuts in found:
                break
            self.progress("stages", note=f"cut at {', '.join(map(str, cut.cuts[1:-1]))}")
            spans = pairwise(cut.cuts)
            if None not in [self._cost(stage, begin, end) for stage, (begin, end) in enumerate(spans)]:
                made = found[cut.cuts] = self._made(cut.cuts)
                if made.seconds <= cut.seconds * (1 + CLOSE):
                    break
        if not found:
            raise UsageError(self._refusal())
        return min(found.values(), key=lambda made: made.seconds)

    def estimated(self) -> PipelineTime:
        """A step by the plans of single parts, of which alike ones are planned once, whatever they hold."""
        return self._simulated(self._estimated_cut)

    def fitting(self) -> PipelineTime | None:
        """The same with parts that hold less, as long as some place holds more than it may; None if they were not found
        to fit."""
        limit = self.planner.memory
        for _ in range(TIGHTENED):
            cuts = self._estimated_cut
            held = [self._held(place, cuts) for place in range(self.places)]
            place = max(range(self.places), key=lambda place: held[place][0])
            most, passing = held[place]
            if most <= limit:
                return self._simulated(cuts)
            own = [stage for stage, at in enumerate(self.place_of_stage) if at == place]
            parts = [part for stage in own for part in range(cuts[stage], cuts[stage + 1])]
            in_flight = max(self.in_flight[stage] for stage in own)
            if passing >= limit or not self._tightened(
                parts, (limit - passing) / (most - passing), in_flight
            ):
                break
        return None

    @property
    def _estimated_cut(self) -> tuple[int, ...]:
        cut = self._cut(self._estimate, gap=CLOSE, most=STEPS)
        assert cut is not None  # every stretch of parts has a time
        return cut.cuts

    def _simulated(self, cuts: tuple[int, ...]) -> PipelineTime:
        times = [self._estimate(stage, begin, end) for stage, (begin, end) in enumerate(pairwise(cuts))]
        return simulated(self.actions, self.place_of_stage, times)

    def _held(self, place: int, cuts: tuple[int, ...]) -> tuple[int, int]:
        """The most bytes of a place by the plans of its parts, and of these what is there for moments only."""
        stages = {
            stage: together([self._memory_of_part(part) for part in range(begin, end)])
            for stage, (begin, end) in enumerate(pairwise(cuts))
            if self.place_of_stage[stage] == place
        }
        return held_bytes(self.actions[place], stages), max(s.backward - s.kept for s in stages.values())

    def _tightened(self, parts: Sequence[int], tighter: float, in_flight: int) -> bool:
        """Whether any of the parts has a plan that holds so many times less, with passes in flight; others stay as they
        are, and so do those that hold little altogether."""
        found: dict[Hashable, Plan] = {}
        alike = Counter(map(self._kind, parts))
        for key, part in {self._kind(part): part for part in parts}.items():
            own = self._memory_of_part(part)
            holds, passing = own.lasting + in_flight * own.kept, own.backward - own.kept
            if alike[key] * holds < LITTLE * self.planner.memory:
                continue
            limit = tighter * holds + passing
            plan = self.planner.plan(part, part + 1, in_flight, limit / self.planner.memory)
            if plan is not None:
                found[key] = plan
        self.parts |= found
        self.times.clear()
        self.memory.clear()
        return bool(found)

    def _cut(
        self, cost: Callable[[int, int, int], StageTime | None], gap: float, most: int | None
    ) -> Cuts | None:
        """The best cut if stages take so long."""

        def judge(cuts: tuple[int, ...]) -> float:
            times = [cost(stage, begin, end) for stage, (begin, end) in enumerate(pairwise(cuts))]
            known = [time for time in times if time is not None]
            return simulated(self.actions, self.place_of_stage, known).seconds

        return best_cuts(
            *(len(self.planner), self.stages, cost, judge, self.micro_batches, gap),
            ranks_of_stages=self.place_of_stage,
            actions=self.actions,
            most=most,
        )

    def _cost(self, stage: int, begin: int, end: int) -> StageTime | None:
        """The time of a stage by its plan; None if it does not fit."""
        key = stage, begin, end
        if key not in self.known:
            plan = self._plan(stage, begin, end)
            self.known[key] = None if plan is None else self._time(plan, end == len(self.planner))
        return self.known[key]

    def _known_or_estimated(self, stage: int, begin: int, end: int) -> StageTime | None:
        key = stage, begin, end
        return self.known[key] if key in self.known else self._estimate(*key)

    def _estimate(self, stage: int, begin: int, end: int) -> StageTime:
        """The times of its parts, which are planned one by one, added up."""
        times = [self._of_part(part) for part in range(begin, end)]
        return StageTime(
            forward=sum(time.forward for time in times),
            input=sum(time.input for time in times),
            weight=sum(time.weight for time in times),
            sends=times[-1].sends,
            returns=times[-1].returns,
            step=sum(time.step for time in times),
        )

    def _of_part(self, part: int) -> StageTime:
        key = self._kind(part)
        if key not in self.times:
            self.times[key] = self._time(self._part(part), part + 1 == len(self.planner))
        return self.times[key]

    def _memory_of_part(self, part: int) -> StageMemory:
        key = self._kind(part)
        if key not in self.memory:
            self.memory[key] = StageMemory.of(self._part(part))
        return self.memory[key]

    def _part(self, part: int) -> Plan:
        key = self._kind(part)
        if key not in self.parts:
            self.parts[key] = self.planner.free_plan(part, part + 1)
        return self.parts[key]

    def _kind(self, part: int) -> Hashable:
        """The same for parts that are alike; the last sends nothing."""
        return self.planner.alike(part, part + 1), part + 1 == len(self.planner)

    def _time(self, plan: Plan, last: bool) -> StageTime:
        link = self.planner.cluster.link(self.planner.mesh, AXIS)
        return stage_time(plan, last=last, send=lambda size: link.time("permute", size, 2))

    def _plan(self, stage: int, begin: int, end: int) -> Plan | None:
        return self.planner.plan(begin, end, self.in_flight[stage], self.share)

    def _made(self, cuts: tuple[int, ...]) -> Pipeline:
        plans = [self._plan(stage, begin, end) for stage, (begin, end) in enumerate(pairwise(cuts))]
        planner = self.planner
        return Pipeline(
            *(
                planner.segments.graph.name,
                planner.mesh,
                planner.cluster,
                self.schedule,
                self.micro_batches,
                cuts,
            ),
            tuple(plan for plan in plans if plan is not None),
            planner.memory,
        )

    def _refusal(self) -> str:
        planner = self.planner
        return (
            f"no cut of {planner.segments.graph.name} into {self.stages} stages by {self.schedule} on {planner.mesh} "
            f"was found whose stages fit in {bytes_text(planner.memory)} a device: use more places along {AXIS}, "
            "recompute='auto', or more memory"
        )


def _confirmed(pipeline: Pipeline, planner: Stages) -> Pipeline:
    """The pipeline once experiments have confirmed the calls of its stages."""
    confirmations = Confirmations()
    cuts = pairwise(pipeline.cuts)
    stages = [
        planner.confirmed(plan, begin, end, confirmations)
        for plan, (begin, end) in zip(pipeline.stages, cuts, strict=True)
    ]
    return replace(pipeline, stages=tuple(stages))
