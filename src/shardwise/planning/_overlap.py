"""A schedule whose collectives run beside calls: begun before they are needed, waited for when they are.

A plain schedule has every move where its target is needed first, or where its source is made, and waits for it there.
Here the step is run through in time. Whenever a link would have nothing to do beside the next call, a move is begun:
of those that end before the link is wanted for what cannot wait, or could not be begun later, that which is needed
first. So parameters are gathered before their use, and gradients reduced when there is nothing more urgent. A move is
waited for where its target is needed. Then collectives are shifted where that makes the step shorter (`_shift`).

How much may be under way is limited twice: by `ahead`, the bytes of moves that are begun early at any time, and as many
of those that are waited for late; and by the memory of the plan, of which moves under way take what the plain schedule
leaves. So a plan that fits still fits.

Calls keep their order. A move of several collectives becomes one move for each, so that all of them can run beside
calls. Forward and backward are programs of their own: nothing is under way from one to the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from ._beside import Beside
from ._evaluate import Evaluation
from ._schedule import Compute, Entry, Move, Schedule, Wait, with_deaths
from ._slack import Slack
from ._timeline import Running

if TYPE_CHECKING:
    from ._plan import Plan
    from ._shift import Shifts

# The bytes that may be under way in the schedules that are tried, as multiples of the largest collective: where a plan
# leaves room for the last, only that and the first.
_SHARES = (0, 4, 8, 64)
_LOOKED_AT = 8  # moves that have to wait, before a link is left idle


def overlapped(plan: "Plan", plain: Schedule, ahead: int) -> Schedule:
    """The plain schedule of a plan with moves begun early and waited for late, so many bytes at a time."""
    beside = Beside.of(plan, plain) if ahead else None
    return plain if beside is None else _run(beside, ahead).shifted()


def with_overlap(plan: "Plan") -> "Plan":
    """A plan without overlap with as much under way as makes it fastest: of what takes equally long the least."""
    return fastest([plan])


def fastest(plans: "Sequence[Plan]") -> "Plan":
    """Of plans without overlap that which is the fastest with it, before its collectives are shifted."""
    runs = [_begun(plan) for plan in plans]
    number = int(np.argmin([np.inf if run is None else run.running.now for run in runs]))
    plan, best = plans[number], runs[number]
    if best is None:
        return replace(plan, ahead=0)
    made = replace(plan, ahead=best.ahead)
    made.__dict__["schedule"] = best.shifted() if best.ahead else plan.schedule
    return made


def _begun(plan: "Plan") -> "_Run | None":
    """The fastest run of a plan; None if it does not fit in memory."""
    beside = Beside.of(plan, plan.schedule)
    if beside is None:
        return None
    sizes = [step.size for move in plan.schedule.moves for step in move.change.collectives]
    largest = max([*sizes, *(slack.size for slack in beside.slack)], default=0)
    tried = [share * largest for share in _SHARES]
    if beside.free.min() >= tried[-1]:
        tried = [tried[0], tried[-1]]
    return min((_run(beside, ahead) for ahead in dict.fromkeys(tried)), key=lambda run: run.running.now)


def _run(beside: Beside, ahead: int) -> "_Run":
    run = _Run(beside, ahead)
    run.run()
    return run


@dataclass(eq=False)
class _Flow:
    """How far a move is: its next stage, or the one that is under way if it is `begun`, which ends at `ends`."""

    slack: Slack
    need: int  # where it must have ended, or where the limit will ask for it
    latest: list[float] = field(default_factory=list)
    stage: int = 0
    begun: tuple[Move, ...] = ()
    ends: float = 0.0
    counted: bool = False  # among what is begun early
    past: bool = False  # its place in the plain schedule
    held: int = 0  # the bytes that it is counted with
    begins: list[int] = field(default_factory=list)  # the moment at which each stage was begun
    ended: int = 0  # that at which the last was waited for

    @property
    def next(self) -> tuple[Move, ...]:
        return self.slack.stages[self.stage]

    @property
    def started(self) -> bool:
        return self.stage > 0 or bool(self.begun)

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

    def __init__(self, of: Beside, ahead: int) -> None:
        self.of, self.ahead, self.room = of, ahead, of.free.copy()
        self.running = Running(of.links)
        self.entries: list[Entry] = []
        self.moment = 0  # twice the place, and one more where what is needed there has been waited for
        self.begun: list[
            tuple[_Flow, int]
        ] = []  # moves and their stages, in the order in which they were begun
        self.early = 0  # bytes of moves that were begun early
        self.late: dict[_Flow, None] = {}  # past their place and not waited for, the oldest first
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
        elsewhere: set[int] = set()  # places of moves that are begun and waited for at others
        for flow in self._flows() if self.ahead else ():
            slack = flow.slack
            released.setdefault(slack.release, []).append(flow)
            due.setdefault(slack.need, []).append(flow)
            standing[slack.at] = flow
            elsewhere.update(slack.places)
        for place in range(of.end + 1):
            self.moment = 2 * place
            for flow in released.get(place, ()):
                self._make_ready(flow)
            for flow in due.get(place, ()):
                self._finish(flow)
            if place in standing and not standing[place].done:
                self._pass(standing[place])
            self._relieve(place)
            if place < of.end and place not in elsewhere:
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
            after: tuple[np.ndarray, float] | None = None  # the link of the next stage, and when that begins
            for stage, seconds in reversed(list(zip(flow.slack.stages, flow.slack.seconds, strict=True))):
                link = self.of.link(stage)
                left = self.of.lanes[link].left
                end = float(left[flow.need] if after is None else np.interp(after[1], after[0], left))
                last = free[link] = min(end, free.get(link, end)) - seconds
                after = left, last
                flow.latest.insert(0, last)
        return flows

    def shifted(self) -> Schedule:
        """The schedule with collectives shifted to where the step is shorter."""
        shifts = self.shifts()
        if shifts.fit:
            made = self._schedule(list(shifts.entries()))
            if shifts.certain or self._fits(made):
                return made
        return self._schedule(self.entries)

    def _schedule(self, entries: list[Entry]) -> Schedule:
        plain = self.of.plain
        dying = with_deaths(entries, plain.outputs, self.of.plan.graph.ends)
        return Schedule(tuple(dying), plain.outputs, self.of.layouts)

    def _fits(self, made: Schedule) -> bool:
        plan = self.of.plan
        return plan.memory is None or Evaluation(plan, made).cost().peak <= plan.memory

    def shifts(self) -> "Shifts":
        from ._shift import Begun, Shifts  # loads compiled code

        numbers = {flow: number for number, flow in enumerate(dict.fromkeys(flow for flow, _ in self.begun))}
        moves = [Begun(flow.slack, flow.begins, flow.ended) for flow in numbers]
        return Shifts(self.of, moves, [(numbers[flow], stage) for flow, stage in self.begun], self.ahead)

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
        self.moment = 2 * place + 1
        for flow in [flow for flow in self.open if flow.ends <= self.running.now]:
            self._wait(flow)
            self._make_ready(flow)
        until = self.running.now + seconds
        for (limited, link), ready in self.ready.items():
            aside, before = list[tuple[int, int, _Flow, int]](), 0
            while ready and self.running.free[link] < until and len(aside) < _LOOKED_AT:
                flow = ready[0][2]
                if flow.stage == ready[0][3] and not flow.begun:
                    if (not limited or self._has_time(flow, link, place)) and self._may_begin(
                        flow, place, before
                    ):
                        self._begin(flow)
                    else:
                        aside.append(ready[0])
                        before += 0 if flow.slack.is_late or flow.started else flow.slack.size
                heappop(ready)
            for waiting in aside:
                heappush(ready, waiting)

    def _has_time(self, flow: _Flow, link: str, place: int) -> bool:
        queued = max(0.0, self.running.free[link] - self.running.now)
        seconds, latest = flow.slack.seconds[flow.stage], flow.latest[flow.stage]
        return self.of.lanes[link].fits(place, seconds, queued, latest)

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
            room = self.room[place : slack.at]
            if (room < slack.whole).any() or room[0] < slack.whole + self.held:
                return False
            self.room[place : slack.at] -= slack.whole
        elif self.held + slack.between > self.room[place]:
            return False
        if not slack.is_late:
            flow.counted = True
            self.early += slack.size
        return True

    def _begin(self, flow: _Flow) -> None:
        flow.begun = tuple(replace(move, begun=True) for move in flow.next)
        for move in flow.begun:
            self._move(move)
        self._note(flow, flow.stage)
        flow.ends = self.running.ends(flow.begun[-1].target)
        if flow.stage + 1 < len(flow.slack.stages):
            self.open.append(flow)
            self._count(flow)

    # -- what is waited for

    def _wait(self, flow: _Flow) -> None:
        """Wait for the stage that is under way."""
        for move in flow.begun:
            self.running.wait(move.target)
            self.entries.append(Wait(move))
        flow.begun = ()
        flow.stage += 1
        if flow in self.open:
            self.open.remove(flow)
        if flow.done:
            self._end(flow)
        else:
            self._count(flow)

    def _finish(self, flow: _Flow) -> None:
        """Wait for a move here, and for what is left of it."""
        if flow.done:
            return
        if not flow.started and len(flow.slack.moves) == 1:
            self._move(flow.slack.moves[0])
            for stage in range(len(flow.slack.stages)):
                self._note(flow, stage)
            flow.stage = len(flow.slack.stages)
        while not flow.done:
            if not flow.begun:
                self._begin(flow)
            self._wait(flow)
        self._end(flow)

    def _note(self, flow: _Flow, stage: int) -> None:
        flow.begins.append(self.moment)
        self.begun.append((flow, stage))

    def _end(self, flow: _Flow) -> None:
        flow.ended = self.moment
        if flow.counted:
            self.early -= flow.slack.size
            flow.counted = False
        if flow.past:
            flow.past = False
            del self.late[flow]
            self._count(flow)
            self.waiting -= flow.slack.size if flow.slack.is_late else 0

    def _relieve(self, place: int) -> None:
        """Wait for the oldest moves until the limits are kept to."""
        while self.late and (self.held > self.room[place] or self.waiting > self.ahead):
            self._finish(next(iter(self.late)))

    def _pass(self, flow: _Flow) -> None:
        """What is not done at its place in the plain schedule is late from there on."""
        flow.past = True
        self.late[flow] = None
        self._count(flow)
        self.waiting += flow.slack.size if flow.slack.is_late else 0

    def _count(self, flow: _Flow) -> None:
        """Count what a move holds now, no longer what it held before."""
        self.held += flow.holds - flow.held
        flow.held = flow.holds
