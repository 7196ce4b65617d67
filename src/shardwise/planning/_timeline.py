"""When the entries of a schedule run: calls one after another, and collectives beside them, one at a time on each link.

A collective starts once it is begun and its link is free; axes of a mesh that use the same link share it. What calls
wait for is exposed. A call that runs beside a collective takes longer, by `SLOWDOWN`. The step ends when all has.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..mesh import Cluster, Link, Mesh
from ..redistribution import Step
from ._prices import SLOWDOWN
from ._schedule import Compute, Move, Schedule, Value

CALLS = "calls"


@dataclass(frozen=True)
class Span:
    """What a stream does, and when: `entry` is the number of a call or of a move in the schedule. In a span of calls
    with a `link` they wait for the entry's collective on it."""

    stream: str
    start: float
    end: float
    entry: int
    link: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """What the stream of calls and those of links do in a step of so many seconds."""

    spans: tuple[Span, ...]
    seconds: float

    @cached_property
    def busy(self) -> Mapping[str, float]:
        """Seconds in which each link is used."""
        found: Counter[str] = Counter()
        for span in self.spans:
            if span.stream != CALLS:
                found[span.stream] += span.seconds  # type: ignore[assignment]
        return found

    @cached_property
    def waited(self) -> Mapping[int, float]:
        """Seconds in which calls wait for each move, by its entry."""
        found: Counter[int] = Counter()
        for span in self.spans:
            if span.link:
                found[span.entry] += span.seconds  # type: ignore[assignment]
        return found

    @cached_property
    def exposed(self) -> Mapping[str, float]:
        """Seconds in which calls wait for each link."""
        found: Counter[str] = Counter()
        for span in self.spans:
            if span.link:
                found[span.link] += span.seconds  # type: ignore[assignment]
        return found


def timeline(schedule: Schedule, seconds: Sequence[float], mesh: Mesh, cluster: Cluster) -> Timeline:
    """The timeline of a schedule whose calls take so many seconds by themselves."""
    running = Running(links(mesh, cluster))
    for number, (entry, alone) in enumerate(zip(schedule.entries, seconds, strict=True)):
        if isinstance(entry, Compute):
            running.call(number, alone)
        elif isinstance(entry, Move):
            running.begin(number, entry)
            if not entry.begun:
                running.wait(entry.target)
        else:
            running.wait(entry.move.target)
    return Timeline(tuple(running.spans), running.now)


def links(mesh: Mesh, cluster: Cluster) -> tuple[str, ...]:
    """The name of each axis's link: its own, or those of all axes that share the link."""
    used = [cluster.link(mesh, axis) for axis in range(mesh.ndim)]
    slowest = [link if isinstance(link, Link) else link.outer for link in used]
    sharing = (
        [name for name, other in zip(mesh.names, slowest, strict=True) if other == own] for own in slowest
    )
    return tuple("+".join(names) for names in sharing)


class Running:
    """A schedule as it is run: the spans so far, and when each link is free."""

    def __init__(self, links: Sequence[str]) -> None:
        self.links = links
        self.now = 0.0
        self.free: dict[str, float] = dict.fromkeys(links, 0.0)  # when each link is free
        # The entry that brings a target, and the links that its collectives use with when they end.
        self.under_way: dict[Value, tuple[int, list[tuple[str, float]]]] = {}
        self.together: list[Value] = []  # the targets of the last collective
        self.spans: list[Span] = []

    def call(self, number: int, alone: float) -> None:
        busy = (
            max(0.0, *self.free.values(), self.now) - self.now
        )  # links are used from now on without a break
        slow = min(alone, busy / (1 + SLOWDOWN))
        self._until(self.now + alone + SLOWDOWN * slow, number)

    def begin(self, number: int, move: Move) -> None:
        """Its collectives run one after another. What is joined into one ends together."""
        ends: list[tuple[str, float]] = []
        for step in move.change.collectives:
            ends.append(self._collective(number, step, ends[-1][1] if ends else self.now))
        self.under_way[move.target] = number, ends
        self.together = [*self.together, move.target] if move.joined else [move.target]
        for target in self.together[:-1]:
            self.under_way[target] = self.under_way[target][0], ends

    def wait(self, target: Value) -> None:
        number, ends = self.under_way.pop(target)
        for link, end in ends:
            if end > self.now:
                self._until(end, number, link)

    def ends(self, target: Value) -> float:
        """When a move that was begun ends."""
        return self.under_way[target][1][-1][1]

    def _collective(self, number: int, step: Step, earliest: float) -> tuple[str, float]:
        used = list(dict.fromkeys(self.links[axis] for axis in step.axes))
        start = max(earliest, *(self.free[link] for link in used))
        end = start + step.seconds
        for link in used:
            self.free[link] = end
            self.spans.append(Span(link, start, end, number))
        return used[0], end

    def _until(self, end: float, number: int, link: str = "") -> None:
        self.spans.append(Span(CALLS, self.now, end, number, link))
        self.now = end
