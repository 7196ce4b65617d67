"""From a graph with boundaries to a `Pipeline`: where it is cut into stages, by which schedule, and their plans.

Every stretch of parts that a stage may have is planned where they are few: the cut that is found is then the best of
all. Of more parts each is planned by itself, alike ones once, and their times are added up to choose the cuts that are
worth planning; those are judged by the plans of their stages.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..dtensor import SCHEDULES, pipeline_actions, stage_ranks
from ..errors import UsageError, require
from ..experiments import Confirmations
from ..graph import Graph
from ..mesh import Cluster, Mesh
from ..progress import Progress, silent
from ._cuts import best_cuts
from ._pins import Pin
from ._pipeline import AXIS, Pipeline
from ._plan import Plan
from ._stage_costs import most_in_flight, stage_time
from ._stage_times import StageTime
from ._stages import Stages
from ._summary import bytes_text

EVERY = 8  # parts up to which every stretch of them is planned
JUDGED = 6  # cuts of more parts that are planned

# What is tried where no schedule is given, each with its stages per place.
AUTO = (("1F1B", 1), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2))


def plan_pipeline(
    graph: Graph,
    *,
    mesh: Mesh,
    cluster: Cluster,
    memory: int,
    optimizer: str = "adam",
    micro_batches: int = 1,
    schedule: str = "1F1B",
    stages: int | None = None,
    zero: bool = False,
    pins: Mapping[str, Pin] | None = None,
    of_search: Mapping[str, Any] | None = None,
    confirm: bool = True,
    progress: Progress | None = None,
) -> Pipeline:
    """The fastest pipeline of a graph that was captured with boundaries, on a mesh with the axis `pp`.

    `schedule` is one of torch's, or `auto`; there are so many `stages`, by default one at each place along `pp`, or two
    where the schedule has several.
    """
    require(schedule, str, "schedule", f"one of {', '.join(SCHEDULES)}, or 'auto'")
    tell = progress or silent
    planner = Stages(
        *(graph, mesh, cluster),
        memory=memory,
        pins=pins or {},
        of_planner={
            "optimizer": optimizer,
            "micro_batches": micro_batches,
            "zero": zero,
            "progress": progress,
        },
        of_search=of_search or {},
    )
    options = AUTO if schedule == "auto" else ((schedule, 1 if schedule in ("1F1B", "GPipe") else 2),)
    found: list[Pipeline] = []
    problems: list[UsageError] = []
    for number, (name, each) in enumerate(options):
        tell("stages", number, len(options), note=name)
        try:
            found.append(_Cutting(planner, name, stages or each * mesh[AXIS], micro_batches, tell).best())
        except UsageError as error:
            problems.append(error)
    if not found:
        raise problems[0]
    best = min(found, key=lambda pipeline: pipeline.seconds)
    return _confirmed(best, planner) if confirm else best


class _Cutting:
    """The cut of a graph into a number of stages that run by a schedule."""

    def __init__(
        self, planner: Stages, schedule: str, stages: int, micro_batches: int, progress: Progress
    ) -> None:
        self.planner, self.schedule, self.stages = planner, schedule, stages
        self.micro_batches, self.progress = micro_batches, progress
        self.places = planner.mesh[AXIS]
        if stages > len(planner):
            name = planner.segments.graph.name
            raise UsageError(
                f"{name} has {len(planner)} parts between which it can be cut, fewer than {stages} stages: "
                f"use a smaller {AXIS}"
            )
        self.place_of_stage = stage_ranks(schedule, self.places, stages)
        self.actions = pipeline_actions(schedule, self.places, stages, micro_batches)
        counts = [most_in_flight(actions) for actions in self.actions]
        self.in_flight = [counts[place][stage] for stage, place in enumerate(self.place_of_stage)]
        # Stages of one place share its memory.
        self.share = self.places / stages
        self.judged: dict[tuple[int, ...], Pipeline] = {}
        link = planner.cluster.link(planner.mesh, AXIS)
        self.send = lambda size: link.time("permute", size, 2)

    def best(self) -> Pipeline:
        exact = len(self.planner) <= EVERY
        cut = best_cuts(
            *(len(self.planner), self.stages, self._cost if exact else self._estimate, self._judge),
            self.micro_batches,
            self.planner.of_search.get("gap", 0.0),
            ranks_of_stages=self.place_of_stage,
            actions=self.actions,
            most=None if exact else JUDGED,
        )
        if cut is None or math.isinf(cut.seconds):
            raise UsageError(self._refusal())
        return replace(self.judged[cut.cuts], bound=cut.bound if exact else None)

    def _plan(self, stage: int, begin: int, end: int) -> Plan | None:
        return self.planner.plan(begin, end, self.in_flight[stage], self.share)

    def _cost(self, stage: int, begin: int, end: int) -> StageTime | None:
        plan = self._plan(stage, begin, end)
        return None if plan is None else stage_time(plan, last=stage + 1 == self.stages, send=self.send)

    def _estimate(self, stage: int, begin: int, end: int) -> StageTime | None:
        """The times of parts that are planned one by one, added up."""
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
        plan = self.planner.free_plan(part, part + 1)
        return stage_time(plan, last=part + 1 == len(self.planner), send=self.send)

    def _judge(self, cuts: tuple[int, ...]) -> float:
        self.progress("stages", note=f"cut at {', '.join(map(str, cuts[1:-1]))}")
        plans = [self._plan(stage, *cuts[stage : stage + 2]) for stage in range(self.stages)]
        if any(plan is None for plan in plans):
            return math.inf
        made = self.judged[cuts] = Pipeline(
            self.planner.segments.graph.name,
            self.planner.mesh,
            self.planner.cluster,
            self.schedule,
            self.micro_batches,
            cuts,
            tuple(plan for plan in plans if plan is not None),
            self.planner.memory,
        )
        return made.seconds if made.peak <= self.planner.memory else math.inf

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
