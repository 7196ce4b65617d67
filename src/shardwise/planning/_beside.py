"""Which moves of a schedule may run beside calls, between which places, and what they hold meanwhile."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Ref
from ..redistribution import Chain, Step
from ._buckets import Buckets
from ._evaluate import Cost, Evaluation, shares_memory_of
from ._prices import SLOWDOWN
from ._schedule import (
    Compute,
    Move,
    Schedule,
    Value,
    backward_entries,
    hides,
    with_early_views,
    with_late_views,
)
from ._slack import Slack
from ._timeline import links

if TYPE_CHECKING:
    from ._plan import Plan


@dataclass(frozen=True, eq=False)
class Lane:
    """A link, for what can wait: `left` are the seconds before each place in which nothing urgent uses it, while calls
    run or wait for other links, `urgent` the places at which it is wanted for what is urgent (and the end), and `gaps`
    the seconds before each of these since the one before."""

    left: np.ndarray
    urgent: np.ndarray
    gaps: np.ndarray

    def fits(self, place: int, seconds: float, queued: float, latest: float) -> bool:
        """Whether what takes so long, after what is queued, shall begin at a place: it ends before the link is wanted,
        must not wait, or would not end in time in a longer gap further on either."""
        here = int(np.searchsorted(self.urgent, place))
        room = self.left[self.urgent[here]] - self.left[place] - queued
        if seconds <= room or latest <= self.left[place + 1]:
            return True
        last = int(np.searchsorted(self.left[self.urgent], latest))
        return last <= here or bool(room >= self.gaps[here + 1 : last + 1].max(initial=0.0))


class Beside:
    """What the schedules of a plan with different limits have in common."""

    @classmethod
    def of(cls, plan: "Plan", plain: Schedule) -> "Beside | None":
        """None for a plan that does not fit in memory: there is none for what would be under way."""
        ends = plan.graph.ends
        for schedule in (with_early_views(with_late_views(plain, ends), ends), plain):  # these may hold more
            evaluation = Evaluation(replace(plan, ahead=None), schedule)
            cost = evaluation.cost()
            if plan.memory is None or cost.peak <= plan.memory:
                return cls(plan, evaluation, cost)
        return None

    def __init__(self, plan: "Plan", evaluation: Evaluation, cost: Cost) -> None:
        self.plan, self.evaluation = plan, evaluation
        self.plain = plain = evaluation.schedule
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
        calls = [
            seconds if isinstance(e, Compute) else 0.0
            for e, seconds in zip(plain.entries, self.taken, strict=True)
        ]
        self.passed = np.concatenate([[0.0], np.cumsum(calls)]) * (1 + SLOWDOWN)  # seconds before each entry
        turn, back = self._turn()
        free = self.free.copy()
        buckets = Buckets(plan, plain, back, self.passed, self.before, self.free)
        self.slack = list(buckets.joined(self._slack(turn, back)))
        self.free_before = limit - around[:-1] - (free - self.free)  # bytes just before an entry
        urgent = list(self._urgent())
        self.lanes = {link: self._lane(link, urgent) for link in dict.fromkeys(self.links)}

    def _urgent(self) -> Iterator[tuple[int, int, str, float]]:
        """The collectives that calls wait for, or soon do: when they can begin, where they are waited for, on which
        link, and how long calls wait for them at least."""
        moving = {place for slack in self.slack for place in slack.places}
        for at, entry in enumerate(self.plain.entries):
            if isinstance(entry, Move) and at not in moving:
                for step in entry.change.collectives:
                    for link in {self.links[axis] for axis in step.axes}:
                        yield at, at, link, step.seconds
        for slack in self.slack:
            if not slack.limited:
                seconds = sum(slack.seconds)
                waited = max(0.0, 1 - (self.passed[slack.need] - self.passed[slack.release]) / seconds)
                for stage, taken in zip(slack.stages, slack.seconds, strict=True):
                    yield slack.release, slack.need, self.link(stage), taken * waited

    def _lane(self, link: str, urgent: Iterable[tuple[int, int, str, float]]) -> "Lane":
        waits, wanted = np.zeros(self.end + 1), np.zeros(self.end + 1, bool)
        for release, need, used, seconds in urgent:
            if used == link:
                wanted[release] = True
            else:
                waits[need] += seconds
        left = self.passed + np.concatenate([[0.0], np.cumsum(waits[:-1])])
        places = np.append(np.flatnonzero(wanted[:-1]), self.end)
        return Lane(left, places, np.diff(left[places], prepend=0.0))

    def link(self, stage: tuple[Move, ...]) -> str:
        return self.links[stage[0].change.collectives[0].axes[0]]

    def _slack(self, turn: int, back: int) -> Iterator[Slack]:
        """The moves with large calls between the making of their source and the first use of their target."""
        entries = self.plain.entries
        made = {value: at for at, entry in enumerate(entries) for value in entry.made}
        used: dict[Value, int] = {}
        for at, entry in enumerate(entries):
            for value in entry.used:
                used.setdefault(value, at)
        backward = backward_entries(self.plain, self._results())
        owners = self._owners()
        needed: dict[Value, int] = {}  # where moves that may run beside calls have ended
        for at, entry in enumerate(entries):
            if not isinstance(entry, Move) or not entry.change.collectives:
                continue
            first, last = (back, self.end) if backward[at] else (0, turn)
            release = max(first, made.get(entry.source, -1) + 1)
            need = min(last, used.get(entry.target, self.end))
            if follows := entry.source in needed:
                release = max(first, needed[entry.source])
            if release <= at <= need and self.before[release] < self.before[need]:
                needed[entry.target] = need
                owner = owners[entry.source]
                kept = 0 if owner.ref.name in self.plan.inputs else self.evaluation.local(owner).bytes
                limited = made.get(owner, -1) < first or entry.target not in used
                stages = tuple(self._stages(entry))
                *between, last_size = (self.evaluation.local(stage.target).bytes for stage in stages)
                yield Slack(
                    at,
                    release,
                    need,
                    (entry,),
                    tuple((stage,) for stage in stages),
                    kept,
                    sum(between),
                    sum(between) + last_size,
                    limited,
                    (at,),
                    follows,
                )

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
