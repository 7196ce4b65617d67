"""A schedule whose collectives run beside calls: begun before they are needed, waited for when they are.

A plain schedule has every move where its target is needed first, or where its source is made, and waits for it there.
Here the step is run through in time. Whenever a link would have nothing to do beside the next call, a move is begun:
of those that end before the link is wanted for what cannot wait, or could not be begun later, that which is needed
first. So parameters are gathered before their use, and gradients reduced when there is nothing more urgent. A move is
waited for where its target is needed.

How much may be under way is limited twice: by `ahead`, the bytes of moves that are begun early at any time, and as many
of those that are waited for late; and by the memory of the plan, of which moves under way take what the plain schedule
leaves. So a plan that fits still fits.

Calls keep their order. A move of several collectives becomes one move for each, so that all of them can run beside
calls. Forward and backward are programs of their own: nothing is under way from one to the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Ref
from ..redistribution import Chain, Step
from ._evaluate import Evaluation, shares_memory_of
from ._prices import SLOWDOWN
from ._schedule import (
    Compute,
    Entry,
    Move,
    Schedule,
    Value,
    Wait,
    backward_entries,
    hides,
    with_deaths,
    with_late_views,
)
from ._timeline import Running, links

if TYPE_CHECKING:
    from ._plan import Plan

# Of the largest collective, the bytes that may be under way in the schedules that are tried.
_SHARES = (0, 0.5, 1, 2, 4)
_LOOKED_AT = 8  # moves that have to wait, before a link is left idle


def overlapped(plan: "Plan", plain: Schedule, ahead: int) -> Schedule:
    """The plain schedule of a plan with moves begun early and waited for late, so many bytes at a time."""
    if not ahead:
        return plain
    overlap = _Overlap(plan, plain)
    return overlap.schedule(overlap.run(ahead))


def with_overlap(plan: "Plan") -> "Plan":
    """A plan without overlap with as much under way as makes it fastest: of what takes equally long the least."""
    overlap = _Overlap(plan, plan.schedule)
    largest = max((step.size for move in plan.schedule.moves for step in move.change.collectives), default=0)
    runs = [overlap.run(ahead) for ahead in dict.fromkeys(round(share * largest) for share in _SHARES)]
    best = min(runs, key=lambda run: run.running.now)
    made = replace(plan, ahead=best.ahead)
    made.__dict__["schedule"] = overlap.schedule(best) if best.ahead else plan.schedule
    return made


@dataclass(frozen=True, eq=False)
class _Slack:
    """A move that stands before a call or after one and may run beside others, as stages of one collective each.

    Places are numbers of entries, before which something is done: `at` has the move in the plain schedule; from
    `release` on it can begin, and at `need` it must have ended. `kept` are the bytes of its source that are held as
    long as the first stage is under way, `between` and `whole` those of the targets of all stages but the last, and of
    all. What a program makes and uses itself is not `limited`: it cannot be under way for long.
    """

    at: int
    release: int
    need: int
    move: Move
    stages: tuple[Move, ...]
    kept: int
    between: int
    whole: int
    limited: bool

    @cached_property
    def is_late(self) -> bool:
        """Whether it begins where it stands and is waited for later, rather than begun earlier."""
        return self.release == self.at

    @cached_property
    def size(self) -> int:
        """The bytes that count as under way."""
        return max(step.size for step in self.move.change.steps) if self.limited else 0


class _Overlap:
    """What the schedules of a plan with different limits have in common."""

    def __init__(self, plan: "Plan", plain: Schedule) -> None:
        self.plan = plan
        self.evaluation = Evaluation(replace(plan, ahead=None), with_late_views(plain, plan.graph.ends))
        cost = self.evaluation.cost()
        if plan.memory is not None and cost.peak > plan.memory:  # what is done with a view may be held longer
            self.evaluation = Evaluation(replace(plan, ahead=None), plain)
            cost = self.evaluation.cost()
        self.plain = plain = self.evaluation.schedule
        self.taken, held = cost.entries, cost.held
        self.end = len(plain.entries)
        self.layouts = dict(plain.layouts)
        self.links = links(plan.mesh, plan.cluster)
        large = [isinstance(e, Compute) and hides(e.node) for e in plain.entries]
        self.before = np.concatenate(
            [[0], np.cumsum(large)]
        )  # how many large calls there are before an entry
        limit = np.iinfo(np.int64).max // 2 if plan.memory is None else plan.memory
        around = np.array([0, *held, 0], np.int64)
        self.free = limit - np.maximum(around[:-1], around[1:])  # bytes at an entry and just before it
        self.slack = list(self._slack())
        calls = [
            seconds if isinstance(e, Compute) else 0.0
            for e, seconds in zip(plain.entries, self.taken, strict=True)
        ]
        self.passed = np.concatenate([[0.0], np.cumsum(calls)]) * (1 + SLOWDOWN)  # seconds before each entry
        self.urgent = {link: self._urgent(link) for link in dict.fromkeys(self.links)}

    def _urgent(self, link: str) -> np.ndarray:
        """The next place at which a link is wanted for what cannot wait."""
        moving = {slack.at for slack in self.slack}
        moves = [
            (at, e) for at, e in enumerate(self.plain.entries) if isinstance(e, Move) and at not in moving
        ]
        moves += [(slack.release, slack.move) for slack in self.slack if not slack.limited]
        places = np.full(self.end + 1, self.end)
        for place, move in moves:
            if any(self.links[axis] == link for step in move.change.collectives for axis in step.axes):
                places[place] = place
        return np.minimum.accumulate(places[::-1])[::-1]

    def link(self, move: Move) -> str:
        return self.links[move.change.collectives[0].axes[0]]

    def run(self, ahead: int) -> "_Run":
        run = _Run(self, ahead)
        run.run()
        return run

    def schedule(self, run: "_Run") -> Schedule:
        dying = with_deaths(run.entries, self.plain.outputs, self.plan.graph.ends)
        return Schedule(tuple(dying), self.plain.outputs, self.layouts)

    def _slack(self) -> Iterator[_Slack]:
        """The moves with large calls between the making of their source and the first use of their target."""
        entries = self.plain.entries
        made = {value: at for at, entry in enumerate(entries) for value in entry.made}
        used: dict[Value, int] = {}
        for at, entry in enumerate(entries):
            for value in entry.used:
                used.setdefault(value, at)
        backward = backward_entries(self.plain, self._results())
        turn, back = self._turn()
        owners = self._owners()
        for at, entry in enumerate(entries):
            if not isinstance(entry, Move) or not entry.change.collectives:
                continue
            first, last = (back, self.end) if backward[at] else (0, turn)
            release = max(first, made.get(entry.source, -1) + 1)
            need = min(last, used.get(entry.target, self.end))
            if entry.source in made and isinstance(entries[made[entry.source]], Move):
                release = max(first, at)  # its source is on its way itself
            if release <= at <= need and self.before[release] < self.before[need]:
                owner = owners[entry.source]
                kept = 0 if owner.ref.name in self.plan.inputs else self.evaluation.local(owner).bytes
                limited = made.get(entry.source, -1) < first or entry.target not in used
                stages = tuple(self._stages(entry))
                sizes = [self.evaluation.local(stage.target).bytes for stage in stages]
                yield _Slack(at, release, need, entry, stages, kept, sum(sizes[:-1]), sum(sizes), limited)

    def _results(self) -> Iterator[Value]:
        for output, value in zip(self.plan.graph.outputs, self.plain.outputs, strict=True):
            if value is not None and output.role != "gradient":
                yield value

    def _turn(self) -> tuple[int, int]:
        """The place of the first call of backward, and that after the last call of forward."""
        phases = [entry.node.phase if isinstance(entry, Compute) else "" for entry in self.plain.entries]
        turn = phases.index("backward") if "backward" in phases else self.end
        return turn, max((at + 1 for at, phase in enumerate(phases) if phase == "forward"), default=0)

    def _owners(self) -> dict[Value, Value]:
        """The value in whose memory each value lies."""
        owner = {Value(Ref(entry.name)): Value(Ref(entry.name)) for entry in self.plan.graph.inputs}
        for entry in self.plain.entries:
            base = shares_memory_of(entry)
            owner |= {value: value if base is None else owner[base] for value in entry.made}
        return owner

    def _stages(self, move: Move) -> Iterator[Move]:
        """A move for each collective, with the local steps before it; the last has those after it, too."""
        parts: list[list[Step]] = [[]]
        for step in move.change.steps:
            if not step.is_local and any(not other.is_local for other in parts[-1]):
                parts.append([])
            parts[-1].append(step)
        source = move.source
        for number, steps in enumerate(parts, 1):
            last = number == len(parts)
            target = move.target if last else Value(move.target.ref, f"{move.target.copy}/{number}")
            seconds = sum(step.seconds for step in steps)
            change = Chain(steps[0].before, steps[-1].after, tuple(steps), seconds)
            self.layouts.setdefault(target, change.target)
            self.evaluation.numbers.setdefault(target, self.evaluation.layouts.of(change.target))
            yield Move(source, target, change)
            source = target


@dataclass(eq=False)
class _Flow:
    """How far a move is: its next stage, or the one that is under way if it is `begun`, which ends at `ends`."""

    slack: _Slack
    need: int  # where it must have ended, or where the limit will ask for it
    latest: list[float] = field(default_factory=list)
    stage: int = 0
    begun: Move | None = None
    ends: float = 0.0
    counted: bool = False  # among what is begun early
    past: bool = False  # its place in the plain schedule

    @property
    def next(self) -> Move:
        return self.slack.stages[self.stage]

    @property
    def started(self) -> bool:
        return self.stage > 0 or self.begun is not None

    @property
    def done(self) -> bool:
        return self.stage == len(self.slack.stages)

    @property
    def holds(self) -> int:
        """Bytes beside what the plain schedule holds, after its place there."""
        if not self.past or self.done:
            return 0
        return (self.slack.kept if self.stage == 0 else 0) + (self.slack.between if self.started else 0)


class _Run:
    """A schedule in the making: its entries so far, run through in time."""

    def __init__(self, of: _Overlap, ahead: int) -> None:
        self.of, self.ahead, self.room = of, ahead, of.free.copy()
        self.running = Running(of.links)
        self.entries: list[Entry] = []
        self.early = 0  # bytes of moves that were begun early
        self.late: list[_Flow] = []  # past their place and not waited for, the oldest first
        self.held = self.waiting = 0  # the bytes that these hold, and that count as under way
        self.open: list[_Flow] = []  # under way, with stages to follow
        # By whether they are limited and by link: what a program makes and uses itself goes first, on every link.
        self.ready: dict[tuple[bool, str], list[tuple[int, int, _Flow, int]]] = {
            (limited, link): [] for limited in (False, True) for link in of.links
        }

    def run(self) -> None:
        of = self.of
        released: dict[int, list[_Flow]] = {}
        due: dict[int, list[_Flow]] = {}
        standing: dict[int, _Flow] = {}
        for flow in self._flows() if self.ahead else ():
            slack = flow.slack
            released.setdefault(slack.release, []).append(flow)
            due.setdefault(slack.need, []).append(flow)
            standing[slack.at] = flow
        for place in range(of.end + 1):
            for flow in released.get(place, ()):
                self._make_ready(flow)
            for flow in due.get(place, ()):
                self._finish(flow)
            if place in standing and not standing[place].done:
                standing[place].past = True
                self.late.append(standing[place])
                self._count_late()
            self._relieve(place)
            if place < of.end and place not in standing:
                self._run(place, of.plain.entries[place])

    def _flows(self) -> list[_Flow]:
        """All moves, with when each stage has to begin at the latest."""
        flows, late, size = [], list[_Flow](), 0
        for slack in sorted(self.of.slack, key=lambda slack: slack.at):
            flow = _Flow(slack, slack.need)
            flows.append(flow)
            if slack.is_late and slack.limited:
                late.append(flow)
                size += slack.size
                while size > self.ahead:
                    late[0].need = min(late[0].need, slack.at)
                    size -= late.pop(0).slack.size
        free: dict[str, float] = {}
        for flow in sorted(flows, key=lambda flow: flow.need, reverse=True):
            last = float(self.of.passed[flow.need])
            for stage in reversed(flow.slack.stages):
                link = self.of.link(stage)
                last = free[link] = min(last, free.get(link, last)) - stage.change.price
                flow.latest.insert(0, last)
        return flows

    def _run(self, place: int, entry: Entry) -> None:
        seconds = self.of.taken[place]
        if isinstance(entry, Compute):
            if seconds and self.ahead:
                self._fill(place, seconds)
            self.running.call(len(self.entries), seconds)
            self.entries.append(entry)
        else:
            assert isinstance(entry, Move)
            self._move(entry)

    def _move(self, move: Move) -> None:
        self.running.begin(len(self.entries), move)
        self.entries.append(move)
        if not move.begun:
            self.running.wait(move.target)

    # -- what runs beside the next call

    def _fill(self, place: int, seconds: float) -> None:
        """Begin moves until no link is idle beside a call of so many seconds, what is needed first before the rest."""
        for flow in [flow for flow in self.open if flow.ends <= self.running.now]:
            self._wait(flow)
            self._make_ready(flow)
        until = self.running.now + seconds
        for (limited, link), ready in self.ready.items():
            aside, before = list[tuple[int, int, _Flow, int]](), 0
            while ready and self.running.free[link] < until and len(aside) < _LOOKED_AT:
                flow = ready[0][2]
                if flow.stage == ready[0][3] and flow.begun is None:
                    if (not limited or self._fits(flow, link, place)) and self._may_begin(
                        flow, place, before
                    ):
                        self._begin(flow)
                    else:
                        aside.append(ready[0])
                        before += 0 if flow.slack.is_late or flow.started else flow.slack.size
                heappop(ready)
            for waiting in aside:
                heappush(ready, waiting)

    def _fits(self, flow: _Flow, link: str, place: int) -> bool:
        """Whether a move ends before the link is needed for what is urgent, or cannot wait itself."""
        passed, urgent = self.of.passed, self.of.urgent[link][place]
        queued = max(0.0, self.running.free[link] - self.running.now)
        if queued + flow.next.change.price <= passed[urgent] - passed[place]:
            return True
        return flow.latest[flow.stage] <= passed[place + 1]

    def _make_ready(self, flow: _Flow) -> None:
        queue = self.ready[flow.slack.limited, self.of.link(flow.next)]
        heappush(queue, (flow.need, flow.slack.at, flow, flow.stage))

    def _may_begin(self, flow: _Flow, place: int, before: int) -> bool:
        """Whether the limits allow it, with so many bytes of moves that come before it; what it takes is then taken."""
        slack = flow.slack
        if flow.started:
            return True
        if not slack.is_late and slack.limited and self.early + before + slack.size > self.ahead:
            return False
        if place < slack.at:
            if (self.room[place : slack.at] < slack.whole).any():
                return False
            self.room[place : slack.at] -= slack.whole
        elif self.held + slack.between > self.room[place]:
            return False
        if not slack.is_late:
            flow.counted = True
            self.early += slack.size
        return True

    def _begin(self, flow: _Flow) -> None:
        flow.begun = replace(flow.next, begun=True)
        self._move(flow.begun)
        flow.ends = self.running.ends(flow.begun.target)
        if flow.stage + 1 < len(flow.slack.stages):
            self.open.append(flow)
            self._count_late()

    # -- what is waited for

    def _wait(self, flow: _Flow) -> None:
        """Wait for the stage that is under way."""
        assert flow.begun is not None
        self.running.wait(flow.begun.target)
        self.entries.append(Wait(flow.begun))
        flow.begun = None
        flow.stage += 1
        if flow in self.open:
            self.open.remove(flow)
        if flow.done:
            self._end(flow)
        elif flow.past:
            self._count_late()

    def _finish(self, flow: _Flow) -> None:
        """Wait for a move here, and for what is left of it."""
        if flow.done:
            return
        if not flow.started:
            self._move(flow.slack.move)
            flow.stage = len(flow.slack.stages)
        if flow.begun is not None:
            self._wait(flow)
        while not flow.done:
            self._move(flow.next)
            flow.stage += 1
        self._end(flow)

    def _end(self, flow: _Flow) -> None:
        if flow.counted:
            self.early -= flow.slack.size
            flow.counted = False
        if flow.past:
            self.late.remove(flow)
            flow.past = False
            self._count_late()

    def _relieve(self, place: int) -> None:
        """Wait for the oldest moves until the limits are kept to."""
        while self.late and (self.held > self.room[place] or self.waiting > self.ahead):
            self._finish(self.late[0])

    def _count_late(self) -> None:
        self.held = sum(flow.holds for flow in self.late)
        self.waiting = sum(flow.slack.size for flow in self.late if flow.slack.is_late)
