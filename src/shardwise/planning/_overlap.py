"""A schedule whose collectives run beside calls: begun before they are needed, waited for when they are.

A plain schedule has every move where its target is needed first, or where its source is made, and waits for it there.
Here a move of what was made long ago (a parameter, above all) is begun earlier, and one whose target is needed late (a
gradient's reduction) is waited for later. How much may be under way is limited twice: by `ahead`, the bytes of moves
that are begun early at any time, and as many of those that are waited for late; and by the memory of the plan, of which
moves under way take what the plain schedule leaves. So a plan that fits still fits.

Calls keep their order. A move of several collectives becomes one move for each, so that all of them can run beside
calls. Forward and backward are programs of their own: nothing is under way from one to the other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Ref
from ..redistribution import Chain, Step
from ._evaluate import Evaluation, shares_memory_of
from ._schedule import Compute, Entry, Move, Schedule, Value, Wait, backward_entries, hides, with_deaths
from ._timeline import timeline

if TYPE_CHECKING:
    from ._plan import Plan

# Of the largest collective, the bytes that may be under way in the schedules that are tried.
_SHARES = (0, 0.25, 0.5, 1, 2, 4)


def overlapped(plan: "Plan", plain: Schedule, ahead: int) -> Schedule:
    """The plain schedule of a plan with moves begun early and waited for late, so many bytes at a time."""
    evaluation = Evaluation(plan, plain)
    lasting, _ = evaluation.lasting()
    return _Overlap(plan, plain, evaluation.held(lasting)).schedule(ahead)


def with_overlap(plan: "Plan") -> "Plan":
    """A plan without overlap with as much under way as makes it fastest: of what takes equally long the least."""
    plain, cost = plan.schedule, plan.cost
    overlap = _Overlap(plan, plain, cost.held)
    pairs = zip(plain.entries, cost.entries, strict=True)
    alone = {entry.node.name: seconds for entry, seconds in pairs if isinstance(entry, Compute)}

    def seconds(ahead: int) -> float:
        tried = overlap.schedule(ahead)
        calls = [alone[e.node.name] if isinstance(e, Compute) else 0.0 for e in tried.entries]
        return timeline(tried, calls, plan.mesh, plan.cluster).seconds

    largest = max((step.size for move in plain.moves for step in move.change.collectives), default=0)
    return replace(plan, ahead=min((round(share * largest) for share in _SHARES), key=seconds))


@dataclass(eq=False)
class _Slack:
    """A move that stands before a call or after one and may run beside others, as stages of one collective each.

    Places are numbers of entries, before which something is done: `at` has the move in the plain schedule; from
    `release` on it can begin, and at `need` it must have ended. `begins` and `waits` are where its stages do. `kept`
    are the bytes of its source that are held as long as the first stage is under way. What a program makes and uses
    itself is not `limited`: it cannot be under way for long.
    """

    at: int
    release: int
    need: int
    stages: list[Move]
    kept: int
    limited: bool
    begins: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begins, self.waits = [self.at] * len(self.stages), [self.at] * len(self.stages)

    @property
    def is_late(self) -> bool:
        """Whether it begins where it stands and is waited for later, rather than begun earlier."""
        return self.release == self.at

    def actions(self) -> Iterator[tuple[int, Entry]]:
        for move, begin, wait in zip(self.stages, self.begins, self.waits, strict=True):
            if begin == wait:
                yield begin, move
            else:
                begun = replace(move, begun=True)
                yield begin, begun
                yield wait, Wait(begun)


class _Overlap:
    def __init__(self, plan: "Plan", plain: Schedule, held: Sequence[int]) -> None:
        self.plan, self.plain = plan, plain
        self.evaluation = Evaluation(plan, plain)
        self.end = len(plain.entries)
        self.layouts = dict(plain.layouts)
        calls = [isinstance(e, Compute) and not e.node.facts.view for e in plain.entries]
        large = [isinstance(e, Compute) and hides(e.node) for e in plain.entries]
        self.before = np.concatenate(
            [[0], np.cumsum(large)]
        )  # how many large calls there are before an entry
        places = np.where([*calls, True], np.arange(self.end + 1), self.end)
        self.next_call = np.minimum.accumulate(places[::-1])[::-1]  # what a call needs itself comes before
        limit = np.iinfo(np.int64).max // 2 if plan.memory is None else plan.memory
        around = np.array([0, *held, 0], np.int64)
        self.free = limit - np.maximum(around[:-1], around[1:])  # bytes at an entry and just before it
        self.slack = list(self._slack())

    def schedule(self, ahead: int) -> Schedule:
        if not ahead:
            return self.plain
        self.ahead, self.room = ahead, self.free.copy()
        slack = [replace(move) for move in self.slack]
        self._begin_early([move for move in slack if not move.is_late])
        self._wait_late([move for move in slack if move.is_late])
        entries = list(_joined(self._entries(slack)))
        dying = with_deaths(entries, self.plain.outputs, self.plan.graph.ends)
        return Schedule(tuple(dying), self.plain.outputs, self.layouts)

    # -- which moves can run beside calls

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
                yield _Slack(at, release, need, list(self._stages(entry)), kept, limited)

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

    # -- where they begin and are waited for

    def _begin_early(self, moves: Iterable[_Slack]) -> None:
        """Begin each as early as the limits allow, in the order in which they are needed. An earlier stage has ended
        when the next begins, and is begun early in its turn."""
        under_way: dict[int, np.ndarray] = {}  # bytes at each place, by the number of stages that follow
        last: Counter[int] = Counter()
        for move in moves:
            room = self.room.copy()
            begin, end = move.at, move.need if self._take(move.kept, move.at, move.need) else move.at
            for following, stage in enumerate(reversed(range(len(move.stages)))):
                size, made = self._sizes(move.stages[stage], move.limited)
                if following:
                    if not self._take(made, begin, end):
                        self._leave(move, room)
                        break
                    end = begin
                busy = under_way.setdefault(following, np.zeros(self.end + 1, np.int64))
                first = max(move.release, last[following] if move.limited else 0)
                full = (busy[first:begin] + size > self.ahead) | (self.room[first:begin] < made)
                earliest = first + int(np.flatnonzero(full)[-1]) + 1 if full.any() else min(first, begin)
                begin = min(int(self.next_call[earliest]), begin)
                if size > self.ahead:
                    end = begin
                self.room[begin : end if following else move.at] -= made
                busy[begin:end] += size
                move.begins[stage], move.waits[stage] = begin, end
                if move.limited:
                    last[following] = begin

    def _wait_late(self, moves: Iterable[_Slack]) -> None:
        """Wait for each as late as the limits allow: where one is reached, the oldest is waited for. A stage that
        another follows is waited for when the next move begins."""
        moves_at = {move.at: move for move in moves}
        queue = _Queue()
        for place in range(self.end + 1):
            for due in queue.due(place):
                under: _Under | None = due
                while under is not None:
                    under = self._go_on(queue, under, place)
            while queue.all and queue.kept > self.room[place]:
                self._go_on(queue, queue.all[0], place)
            if place in moves_at:
                for under in [under for under in queue.all if not under.is_last]:
                    self._go_on(queue, under, place)
                move = moves_at[place]
                between = sum(self._sizes(stage)[1] for stage in move.stages[:-1])
                if queue.kept + between > self.room[place]:
                    self._leave(move, self.room)
                self._start(queue, move, 0, place)
                while queue.all and (queue.size > self.ahead or queue.kept > self.room[place]):
                    self._go_on(queue, queue.all[0], place)

    def _start(self, queue: "_Queue", move: _Slack, stage: int, place: int) -> "_Under":
        move.begins[stage] = place
        size, made = self._sizes(move.stages[stage], move.limited)
        read = self._sizes(move.stages[stage - 1])[1] if stage else move.kept
        last = stage + 1 == len(move.stages)
        return queue.add(_Under(move, stage, size, read if last else read + made))

    def _go_on(self, queue: "_Queue", under: "_Under", place: int) -> "_Under | None":
        """Wait for a stage, and begin the next if there is one."""
        queue.remove(under)
        under.move.waits[under.stage] = place
        return None if under.is_last else self._start(queue, under.move, under.stage + 1, place)

    def _leave(self, move: _Slack, room: np.ndarray) -> None:
        """Leave a move where it is, and the memory as it was: there is none for the tensors between its stages."""
        plain = self.plain.entries[move.at]
        assert isinstance(plain, Move)
        move.stages, move.begins, move.waits = [plain], [move.at], [move.at]
        self.room = room

    def _sizes(self, move: Move, limited: bool = True) -> tuple[int, int]:
        """The bytes of a move that count as under way, and those of its target."""
        size = max(step.size for step in move.change.steps) if limited else 0
        return size, self.evaluation.local(move.target).bytes

    def _take(self, amount: int, first: int, last: int) -> bool:
        """Take so many bytes from one place to another (inclusive), if they are free."""
        if (self.room[first : last + 1] < amount).any():
            return False
        self.room[first : last + 1] -= amount
        return True

    # -- the schedule

    def _entries(self, slack: Iterable[_Slack]) -> Iterator[Entry]:
        """The entries in order. At one place, moves that are waited for late go on first, so that their memory is free;
        then begins what can, what is needed first before the others; then is waited for what is needed here."""
        found: dict[int, tuple[list[Entry], list[Entry], list[Entry]]] = {}
        moved = set()
        for move in slack:
            moved.add(move.at)
            for place, entry in move.actions():
                late, begins, others = found.setdefault(place, ([], [], []))
                if move.is_late and move.at < place:
                    late.append(entry)
                else:
                    (begins if isinstance(entry, Move) and not entry.source.copy else others).append(entry)
        for place in range(self.end + 1):
            for entries in found.get(place, ()):
                yield from entries
            if place < self.end and place not in moved:
                yield self.plain.entries[place]


def _joined(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries, with a move that is waited for as soon as it is begun as one entry."""
    begun: Move | None = None
    for entry in entries:
        if begun is not None:
            if isinstance(entry, Wait) and entry.move is begun:
                yield replace(begun, begun=False)
                begun = None
                continue
            yield begun
            begun = None
        if isinstance(entry, Move) and entry.begun:
            begun = entry
        else:
            yield entry


@dataclass(eq=False)
class _Under:
    """A stage under way, with the bytes that it holds beside what the plain schedule does."""

    move: _Slack
    stage: int
    size: int
    kept: int

    @property
    def is_last(self) -> bool:
        return self.stage + 1 == len(self.move.stages)


class _Queue:
    """Stages under way in the order in which they were begun, and their bytes together."""

    def __init__(self) -> None:
        self.all: list[_Under] = []
        self.size = self.kept = 0
        self.needed: dict[int, list[_Under]] = {}

    def add(self, under: _Under) -> _Under:
        self.all.append(under)
        self.size, self.kept = self.size + under.size, self.kept + under.kept
        self.needed.setdefault(under.move.need, []).append(under)
        return under

    def remove(self, under: _Under) -> None:
        self.all.remove(under)
        self.size, self.kept = self.size - under.size, self.kept - under.kept
        self.needed[under.move.need].remove(under)

    def due(self, place: int) -> list[_Under]:
        return list(self.needed.get(place, ()))
